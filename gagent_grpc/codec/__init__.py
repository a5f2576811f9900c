"""Values to generated types and back: `acl` and `management` for both sides, `envelope` for what the bus reads."""
