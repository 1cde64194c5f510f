"""The actors: one folder for each kind, a pure core and a thin shell."""

if __name__ != "milepost.actors":
    raise ImportError(
        "import milepost.actors, not actors: two names would mean two copies of each class"
    )
