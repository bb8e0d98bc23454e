"""A package that has no taskset."""

__all__ = ["something"]

something = 1
