"""The topology as frozen typed objects, and the recipes."""

if __name__ != "milepost.configs":
    raise ImportError(
        "import milepost.configs, not configs: two names would mean two copies of each class"
    )
