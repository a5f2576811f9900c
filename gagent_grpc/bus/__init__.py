"""The agent platform: AMS, DF, mailboxes, routing and sessions. No transport, no store and no generated code in it."""
