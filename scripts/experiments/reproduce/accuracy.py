"""`scripts/reproduce accuracy`: real training, no emulation, by system and codec."""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from matplotlib.figure import Figure

from experiments.reproduce.draw import DOTS_PER_INCH
from experiments.reproduce.fleet import Fleet
from experiments.reproduce.lessons import NODES, Learned, Lesson, learned, lessons, text
from experiments.reproduce.points import Store
from p3_shaper.cluster import PORT_BUFFER
from p3_shaper.rates import Rate

RATE = Rate(200_000_000)


def run(out: Path, iterations: int, systems: Collection[str]) -> list[Path]:
    """Train what `out` does not have yet, and write.

    Raises ClusterError, launch.LaunchError, StoreError.
    """
    store = Store(out / "lessons.jsonl", Learned)
    wanted = lessons(iterations, max(1, iterations // 30), systems)
    there = {one.lesson: one for one in store.read()}
    left = [lesson for lesson in wanted if lesson not in there]
    if left:
        for one in _learn(left, out / "logs"):
            store.add(one)
            there[one.lesson] = one
    found = [there[lesson] for lesson in wanted]
    print(text(found))
    return write(out, found)


def _learn(left: Sequence[Lesson], logs: Path) -> Iterator[Learned]:
    with Fleet(NODES, logs, "experiments.reproduce.lesson_rank") as fleet:
        fleet.reshape(RATE, PORT_BUFFER)
        for number, lesson in enumerate(left):
            print(f"accuracy: {number}/{len(left)}: {lesson.title}", file=sys.stderr, flush=True)
            yield learned(lesson, fleet.tell(lesson, lambda _: None))


def write(out: Path, found: Sequence[Learned]) -> list[Path]:
    """accuracy.json, .csv, .png and .txt in `out`."""
    paths = [out / f"accuracy.{ending}" for ending in ("json", "csv", "png", "txt")]
    paths[0].write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    with paths[1].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("system", "iteration", "accuracy"))
        for one in found:
            for number, accuracy in enumerate(one.accuracies, 1):
                writer.writerow((one.lesson.title, number * one.lesson.every, accuracy))
    _draw(found).savefig(paths[2], dpi=DOTS_PER_INCH)
    paths[3].write_text(text(found) + "\n", encoding="utf-8")
    return paths


def _draw(found: Sequence[Learned]) -> Figure:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle("Digits, four nodes: accuracy on the test set, loss of the joint batch")
    left, right = figure.subplots(1, 2)
    for place, one in enumerate(found):
        width = 1 + 0.5 * (len(found) - place)  # curves that agree all stay visible
        every = one.lesson.every
        steps = [every * number for number in range(1, len(one.accuracies) + 1)]
        left.plot(steps, one.accuracies, linewidth=width, label=one.lesson.title)
        right.plot(one.losses, linewidth=width)
    left.set_xlabel("iteration")
    left.set_ylabel("accuracy")
    right.set_xlabel("iteration")
    right.set_ylabel("training loss")
    left.legend(fontsize="x-small")
    return figure
