"""Draw docs/images/views.png: every task of the paper as an agent sees it.

python -m tools.views_figure          # a minute
"""

from collections.abc import Sequence
from pathlib import Path

from manyview.envs import Task, make
from manyview.envs.registration import load_suite
from manyview.envs.views import Image
from manyview.envs.visualization import RecordedStep, Row, draw_grid, record_random_steps, save_image, stack_vertically

ROOT = Path(__file__).parents[1]
STEPS = 10
COLUMNS = 6
GAME_PX = 128  # nine games are then as wide as six tasks


def paper_tasks(name: str) -> list[Task]:
    return [task for task in load_suite(name).tasks.values() if task.in_paper]


def last_moment(task: Task) -> RecordedStep:
    env = make(task.id, frame_stack=1)
    moment = record_random_steps(env, STEPS, seed=0)[-1]
    env.close()
    return moment


def names(tasks: Sequence[Task]) -> list[str]:
    return [task.id.split("/")[1] for task in tasks]


def draw_tasks(tasks: Sequence[Task]) -> Image:
    shown = [list(last_moment(task).images.values()) for task in tasks]
    labels = ("first camera", "second camera", "background\nremoved")
    rows = [Row(label, [pictures[row] for pictures in shown]) for row, label in enumerate(labels)]
    return draw_grid(rows, column_labels=names(tasks))


def draw_games(games: Sequence[Task]) -> Image:
    row = Row("", [next(iter(last_moment(game).images.values())) for game in games])
    return draw_grid([row], column_labels=names(games), cell_px=GAME_PX)


def main() -> None:
    tasks = paper_tasks("dmc")
    parts = [draw_tasks(tasks[begin : begin + COLUMNS]) for begin in range(0, len(tasks), COLUMNS)]
    save_image(stack_vertically([*parts, draw_games(paper_tasks("procgen"))]), ROOT / "docs" / "images" / "views.png")


if __name__ == "__main__":
    main()
