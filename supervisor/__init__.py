"""Topology to checks to children to shutdown."""

if __name__ != "milepost.supervisor":
    raise ImportError(
        "import milepost.supervisor, not supervisor: two names would mean two copies of each class"
    )
