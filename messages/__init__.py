"""What may be said: envelope, codec, message types, and the bus that carries them."""

if __name__ != "milepost.messages":
    raise ImportError(
        "import milepost.messages, not messages: two names would mean two copies of each class"
    )
