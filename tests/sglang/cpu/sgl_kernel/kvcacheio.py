"""Transfer kernels of the hierarchical cache; older releases import them at the start."""

from sgl_kernel import __getattr__

__all__ = ["__getattr__"]
