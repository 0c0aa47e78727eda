"""Short form of a method: `sac+mem`, `drqv2+curl+re3`, `ppo+none`."""

DEFAULT_METHOD = "drqv2+mem"
NO_REPRESENTATION, NO_BONUS = "pixel", "none"


def parse_method(method: str) -> tuple[str, str, str]:
    """Return the names of agent, representation and bonus of a method such as `sac+mem`.

    A single part is a representation, a bonus or, like `mem`, both; the other part is then `pixel` or `none`. Two parts
    are a representation and a bonus.

    Raises:
        ValueError: A name is unknown or at the wrong place.

    """
    from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS
    from manyview.utils.text import suggest

    agent, *parts = method.split("+")
    if not 1 <= len(parts) <= 2:
        raise ValueError(
            f"invalid method {method!r}: expected <agent>+<representation>+<bonus>, or <agent>+<part> such as sac+mem"
        )
    if len(parts) == 2:
        representation, bonus = parts
    elif parts[0] in REPRESENTATIONS:
        representation, bonus = parts[0], parts[0] if parts[0] in BONUSES else NO_BONUS
    else:
        representation, bonus = NO_REPRESENTATION, parts[0]
        if bonus not in BONUSES:
            known = sorted({*REPRESENTATIONS.list_names(), *BONUSES.list_names()})
            raise ValueError(
                f"unknown method {method!r}: expected a representation or bonus of {', '.join(known)}, got {bonus!r}"
                f"{suggest(bonus, known, form=f'{agent}+{{}}')}"
            )
    return AGENTS[agent].name, REPRESENTATIONS[representation].name, BONUSES[bonus].name


def format_method(agent: str, representation: str, bonus: str) -> str:
    """Return the shortest form that `parse_method` reads as these names, which need not be installed."""
    if representation == bonus or (representation, bonus) == (NO_REPRESENTATION, NO_BONUS):
        return f"{agent}+{bonus}"
    from manyview.methods import BONUSES, REPRESENTATIONS  # imports torch, which `manyview runs` seldom needs

    if representation == NO_REPRESENTATION and bonus not in REPRESENTATIONS:
        return f"{agent}+{bonus}"
    if bonus == NO_BONUS and representation not in BONUSES:
        return f"{agent}+{representation}"
    return f"{agent}+{representation}+{bonus}"
