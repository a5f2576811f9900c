"""The models that an agent may speak to, one vendor's API per module, and choosing among them."""
