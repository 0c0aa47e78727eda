"""Draw docs/images/views.png: every task of the paper as an agent sees it.

python -m benchmarks.views_figure          # a minute
"""

from collections.abc import Sequence
from pathlib import Path

from manyview.envs import Task, make
from manyview.envs.look import Moment, Row, below, draw_grid, save_picture, watch
from manyview.envs.make import suite
from manyview.envs.views import Image

ROOT = Path(__file__).parents[1]
STEPS = 10
COLUMNS = 6
GAME_PX = 128  # nine games are then as wide as six tasks


def paper_tasks(name: str) -> list[Task]:
    return [task for task in suite(name).tasks.values() if task.in_paper]


def last_moment(task: Task) -> Moment:
    env = make(task.id, frame_stack=1)
    moment = watch(env, STEPS, seed=0)[-1]
    env.close()
    return moment


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id.split("/")[1] for task in tasks]


def draw_tasks(tasks: Sequence[Task]) -> Image:
    shown = [list(last_moment(task).pictures.values()) for task in tasks]
    labels = ("first camera", "second camera", "background\nremoved")
    rows = [Row(label, [pictures[row] for pictures in shown]) for row, label in enumerate(labels)]
    return draw_grid(rows, columns=names(tasks))


def draw_games(games: Sequence[Task]) -> Image:
    row = Row("", [next(iter(last_moment(game).pictures.values())) for game in games])
    return draw_grid([row], columns=names(games), cell_px=GAME_PX)


def main() -> None:
    tasks = paper_tasks("dmc")
    parts = [draw_tasks(tasks[begin : begin + COLUMNS]) for begin in range(0, len(tasks), COLUMNS)]
    save_picture(below([*parts, draw_games(paper_tasks("procgen"))]), ROOT / "docs" / "images" / "views.png")


if __name__ == "__main__":
    main()
