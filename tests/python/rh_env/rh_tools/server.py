"""The tool server of `rh-tools`, shared by all rollouts of a worker."""

import verifiers.v1 as vf


class BookConfig(vf.SharedToolsetConfig):
    prefix: str = "word"
    """What every page begins with."""


class Book(vf.Toolset[BookConfig]):
    @vf.tool
    async def page(self, number: int) -> str:
        """Read a page of the book."""
        return f"{self.config.prefix}-{number}"


if __name__ == "__main__":
    Book.run()
