"""Values to generated types and back: `acl`, `management` and `times` for both sides, `envelope` for what the bus reads."""
