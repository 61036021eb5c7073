"""What is done to valid frames so that they are no longer valid, or no longer in a sensible order."""

from tests.search.choices import Choices
from tests.search.values import INTEGERS


def mutated(choices: Choices, frames: list[bytes], others: list[bytes]) -> list[bytes]:
    """`frames` with one kind of damage, or as they are. `others`: frames from elsewhere in the same case."""
    kind = choices.number(0, 23)
    if kind > 11 or not frames:
        return frames
    frames = list(frames)
    index = choices.random.randrange(len(frames))
    if kind == 0:
        frames[index] = flipped(choices, frames[index])
    elif kind == 1:
        frames[index] = frames[index][: choices.random.randrange(len(frames[index]) + 1)]
    elif kind in {2, 3}:
        frames[index] = at_limit(choices, frames[index])
    elif kind == 4:
        choices.random.shuffle(frames)
    elif kind == 5:
        frames[index:index] = [frames[index]] * choices.amount(64)
    elif kind == 6:
        del frames[index]
    elif kind == 7:
        frames[index] = moved(choices, frames[index])
    elif kind == 8 and others:
        frames[index:index] = [choices.random.choice(others) for _ in range(choices.number(1, 4))]
    elif kind == 9 and others:
        other = choices.random.choice(others)
        cut = choices.random.randrange(len(frames[index]))
        frames[index] = frames[index][:cut] + other[cut:]
    elif kind == 10:
        frames = [at_limit(choices, each) if choices.random.random() < 0.1 else each for each in frames]
    else:
        frames[index] = resized(choices, frames[index])
    return frames


def flipped(choices: Choices, frame: bytes) -> bytes:
    if not frame:
        return frame
    octets = bytearray(frame)
    for _ in range(choices.number(1, 4)):
        octets[choices.random.randrange(len(octets))] ^= 1 << choices.number(0, 7)
    return bytes(octets)


def at_limit(choices: Choices, frame: bytes) -> bytes:
    """Some field, wherever it begins, at the limit of some type. Sizes of the frame stay right."""
    size = choices.pick((1, 1, 2, 4, 8))
    start = min(7, len(frame))
    if len(frame) < start + size + 1:
        return frame
    at = choices.random.randrange(start, len(frame) - size)
    value = choices.pick(INTEGERS) % (1 << (8 * size))
    return frame[:at] + value.to_bytes(size, "big") + frame[at + size :]


def moved(choices: Choices, frame: bytes) -> bytes:
    """To another channel: where it is in 0-9-1, or in 1.0 and 0-10."""
    at = choices.pick((1, 6))
    number = choices.pick((0, 1, 2, 2047, 65535))
    return frame[:at] + number.to_bytes(2, "big") + frame[at + 2 :]


def resized(choices: Choices, frame: bytes) -> bytes:
    """With another size in its head: where it is in 0-9-1, in 1.0, or in 0-10."""
    at = choices.pick((3, 0, 2))
    size = choices.pick((0, 1, 7, 8, len(frame) - 1, len(frame) + 1, 131_073, 0x7FFFFFFF, 0xFFFFFFFF))
    width = 2 if at == 2 else 4
    return frame[:at] + (size % (1 << 8 * width)).to_bytes(width, "big") + frame[at + width :]
