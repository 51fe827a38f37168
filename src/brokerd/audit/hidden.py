"""Why missing numbers around a segment with a damaged header prove nothing, for ``holes``.

Such a segment does not say whether it was compacted, nor with which number it began.
"""

from brokerd.audit.scan import Summary


def around_spoiled_headers(levels: dict[int, list[Summary]]) -> list[tuple[int, int]]:
    """The ranges of segments whose header cannot be read, up to their neighbours; both ends are part of a range."""
    ranges = []
    for level in levels.values():
        for k, s in enumerate(level):
            if s.base_seq or not s.records:
                continue
            before, after = level[k - 1] if k else None, level[k + 1] if k + 1 < len(level) else None
            first = before.numbers.last + 1 if before is not None and before.records else s.numbers.first
            last = after.base_seq - 1 if after is not None and after.base_seq else s.numbers.last
            ranges.append((min(first, s.numbers.first), max(last, s.numbers.last)))
    return ranges
