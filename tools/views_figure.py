"""Draw docs/images/views.png: the observations of every task of the paper.

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


def list_paper_tasks(name: str) -> list[Task]:
    return [task for task in load_suite(name).tasks.values() if task.in_paper]


def record_step(task: Task) -> RecordedStep:
    env = make(task.id, frame_stack=1)
    step = record_random_steps(env, STEPS, seed=0)[-1]
    env.close()
    return step


def list_names(tasks: Sequence[Task]) -> list[str]:
    return [task.id.split("/")[1] for task in tasks]


def draw_tasks(tasks: Sequence[Task]) -> Image:
    shown = [list(record_step(task).images.values()) for task in tasks]
    labels = ("first camera", "second camera", "background\nremoved")
    rows = [Row(label, [images[row] for images in shown]) for row, label in enumerate(labels)]
    return draw_grid(rows, column_labels=list_names(tasks))


def draw_games(games: Sequence[Task]) -> Image:
    row = Row("", [next(iter(record_step(game).images.values())) for game in games])
    return draw_grid([row], column_labels=list_names(games), cell_px=GAME_PX)


def main() -> None:
    tasks = list_paper_tasks("dmc")
    parts = [draw_tasks(tasks[start : start + COLUMNS]) for start in range(0, len(tasks), COLUMNS)]
    save_image(
        stack_vertically([*parts, draw_games(list_paper_tasks("procgen"))]), ROOT / "docs" / "images" / "views.png"
    )


if __name__ == "__main__":
    main()
