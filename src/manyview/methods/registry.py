"""Registries of agents, representations and bonuses.

A part is a name, a frozen config dataclass and a builder. Installed packages add parts through entry points::

    [project.entry-points."manyview.bonuses"]
    my_bonus = "my_package.my_bonus"

The entry point's module registers the part when it is imported::

    @register_bonus("my_bonus", MyBonusConfig)
    class MyBonus(nn.Module):
        def __init__(self, config: MyBonusConfig, context: BuildContext) -> None: ...
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint
from typing import Any, TypeVar

from manyview.methods.interfaces import BuildContext, DataSource
from manyview.utils.entry_points import describe_entry_point, find_entry_points, load_entry_point
from manyview.utils.text import suggest

Builder = Callable[[Any, BuildContext], Any]
BuilderT = TypeVar("BuilderT", bound=Callable[..., Any])


@dataclass(frozen=True)
class Part:
    """A registered agent, representation or bonus."""

    name: str
    config: type[Any]
    build: Builder
    data: tuple[DataSource, ...]
    """Data that it learns from; an agent and its parts need one in common."""

    def shares_data(self, other: "Part") -> bool:
        """Return whether both can learn from the same data."""
        return not set(self.data).isdisjoint(other.data)


class Registry:
    """Parts of one kind by name: built-in ones, and those of installed packages."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self._parts: dict[str, Part] = {}

    def register(
        self, name: str, config: type[Any], *, data: tuple[DataSource, ...] = ("replay", "rollout")
    ) -> Callable[[BuilderT], BuilderT]:
        """Return a decorator that registers a builder, called with (config, `BuildContext`).

        Raises:
            ValueError: The name or the config class is taken, or `config` is not a frozen dataclass.

        """
        frozen = is_dataclass(config) and config.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if not (frozen and name.replace("-", "_").isidentifier()):
            raise ValueError(
                f"cannot register {self.kind} {name!r}: expected an identifier and a frozen dataclass, got {config!r}"
            )
        taken = next((part for part in self._parts.values() if name == part.name or config is part.config), None)
        if taken is not None:
            raise ValueError(f"cannot register {self.kind} {name!r}: {taken.name!r} has the same name or config class")

        def decorate(build: BuilderT) -> BuilderT:
            self._parts[name] = Part(name, config, build, data)
            return build

        return decorate

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name in self._find_entry_points()

    def __getitem__(self, name: str) -> Part:
        """Return the part of this name; import its package if an entry point names it.

        Raises:
            ValueError: No such part is installed, or its package does not register it.

        """
        if name not in self._parts and (entry_point := self._find_entry_points().get(name)):
            load_entry_point(entry_point)
            if name not in self._parts:
                raise ValueError(
                    f"{describe_entry_point(entry_point)} does not register it: expected {self.kind} {name!r}, got "
                    f"{', '.join(self._parts)}"
                )
        if name not in self._parts:
            hint = suggest(name, self.list_names())
            raise ValueError(
                f"unknown {self.kind} {name!r}: expected one of {', '.join(self.list_names())}"
                f"{f'{hint} Otherwise install' if hint else '. Install'} the package that provides it"
            )
        return self._parts[name]

    def list_names(self) -> list[str]:
        """Return the names of all installed parts, without importing other packages."""
        return sorted({*self._parts, *self._find_entry_points()})

    def iter_configs(self) -> Iterator[type[Any]]:
        """Yield the config classes of all parts, those of packages that are yet to be imported last."""
        yield from [part.config for part in self._parts.values()]
        for name in self._find_entry_points().keys() - self._parts.keys():
            yield self[name].config

    def find_name(self, config: Any) -> str:
        """Return the name of the part that `config` belongs to."""
        for part in self._parts.values():
            if type(config) is part.config:
                return part.name
        raise ValueError(f"not the config of a registered {self.kind}: {type(config).__name__}")

    def _find_entry_points(self) -> dict[str, EntryPoint]:
        return find_entry_points(self.group)


AGENTS = Registry("agent", "manyview.agents")
REPRESENTATIONS = Registry("representation", "manyview.representations")
BONUSES = Registry("bonus", "manyview.bonuses")


def register_agent(
    name: str, config: type[Any], *, data: DataSource | tuple[DataSource, ...]
) -> Callable[[BuilderT], BuilderT]:
    """Register an agent that learns from `data`, see `Registry.register`."""
    return AGENTS.register(name, config, data=data if isinstance(data, tuple) else (data,))


register_representation = REPRESENTATIONS.register
register_bonus = BONUSES.register
