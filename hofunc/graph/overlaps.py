"""Which of many writes to a storage was the latest to some of its places.

Sets of places are the bits of integers: to compare two takes as long as to copy an eighth of a byte for every place,
and is exact for all strides. The writes are kept with unions of ever more of them, so that the latest is found by as
many comparisons as their number has digits.
"""

from hofunc.graph.layout import Layout


def places_of(layout: Layout) -> int:
    """Return the places of a tensor's elements in memory as the bits that are set.

    Example:
        >>> bin(places_of(Layout((2, 3), (8, 2), 1)))
        '0b10101000101010'
    """
    if 0 in layout.size:
        return 0
    places = 1
    for size, stride in zip(reversed(layout.size), reversed(layout.stride), strict=True):
        if size != 1:
            places = (1 << int(size)) - 1 if places == stride == 1 else _repeated(places, int(size), int(stride))
    return places << int(layout.offset)


def _repeated(places: int, count: int, stride: int) -> int:
    """Return places so many times, each so far from the one before; each step doubles what there is."""
    done = 1
    while done < count:
        more = min(done, count - done)
        places |= places << more * stride
        done += more
    return places


class Overlaps:
    """Sets of places in the order in which they were entered."""

    def __init__(self) -> None:
        self._unions: list[list[int]] = [[]]  # of two to the so many sets, side by side

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._unions[0])

    def enter(self, places: int) -> None:
        """Enter another set."""
        for unions in self._unions:
            unions.append(places)
            if len(unions) % 2:
                return
            places |= unions[-2]
        self._unions.append([places])

    def latest(self, places: int, first: int = 0) -> int | None:
        """Return the number of the latest set that has a place in common with some places.

        Args:
            places: The places.
            first: The number of the first set that counts.
        """
        stop = len(self)
        while stop > first:
            level = (stop & -stop).bit_length() - 1  # of the largest union that ends here
            if self._meets(level, stop, places):
                return self._within(level, stop, places, first)
            stop -= 1 << level
        return None

    def _within(self, level: int, stop: int, places: int, first: int) -> int | None:
        """Return the latest set within a union that has a place in common with some, if it counts."""
        while level:
            level -= 1
            if not self._meets(level, stop, places):
                stop -= 1 << level
        return stop - 1 if stop > first else None

    def _meets(self, level: int, stop: int, places: int) -> bool:
        """Tell whether the union of a level that ends before a set has a place in common with some."""
        return bool(self._unions[level][(stop >> level) - 1] & places)
