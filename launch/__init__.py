"""The `milepost` command line, live displays and reports."""

if __name__ != "milepost.launch":
    raise ImportError(
        "import milepost.launch, not launch: two names would mean two copies of each class"
    )
