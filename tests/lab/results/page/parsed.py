"""A page as a list of its elements."""

from html.parser import HTMLParser

VOID = {"meta", "br"}


class ParsedPage(HTMLParser):
    """Elements, attributes and text of a page; an element that is not closed fails the test."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        """Tag, name and value of each attribute."""
        self.texts: list[tuple[str, str]] = []
        """Tag and text."""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open:
            self.texts.append((self._open[-1], data))

    def texts_of(self, tag: str) -> list[str]:
        """Texts directly in elements with this tag."""
        return [text for each, text in self.texts if each == tag]

    def count(self, name: str, value: str) -> int:
        """Number of attributes with this name and value."""
        return sum(found[1:] == (name, value) for found in self.attributes)
