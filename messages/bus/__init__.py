"""The message bus: mailboxes, links, acknowledgements, credits."""
