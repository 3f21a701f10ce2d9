"""Find a recipe by its name or its path, in a checkout and in an installed wheel."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from lightning_mp.errors import ConfigurationError
from lightning_mp.running.recipe_syntax import require_recipe

_PACKAGE = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """The folder the shipped recipes lie in: inside an installed package, beside it in a checkout.

    Raises:
        ConfigurationError: The package was installed without its recipes.
    """
    for place in (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes"):
        if place.is_dir():
            return place
    raise ConfigurationError(
        f"no recipes lie in `{_PACKAGE / '_recipes'}` or `{_PACKAGE.parent / 'recipes'}`",
        "install lightning-mp again, or give the path of a recipe of your own",
    )


def available() -> dict[str, Path]:
    """Path of each shipped recipe by its name, which is the file's without `.yaml`.

    Example:
        >>> "quickstart" in available()
        True
    """
    return {path.stem: path for path in sorted(folder().glob("*.yaml"))}


def find(recipe: str) -> Path:
    """Path of a recipe.

    A file of that path wins. Otherwise `quickstart`, `quickstart.yaml` and `recipes/quickstart.yaml` all name
    the shipped recipe, so that the commands of the documentation work where no folder `recipes` lies.

    Args:
        recipe: A path, or the name of a shipped recipe.

    Raises:
        ConfigurationError: There is no such file and no such recipe, or it is a folder; the nearest name is offered.
            A file that is no recipe is refused too: see `require_recipe`.
    """
    path = Path(recipe)
    if path.is_file():
        require_recipe(path)
        return path
    if path.is_dir():
        raise ConfigurationError(
            f"`{recipe}` is a folder, a recipe is a file", "give one YAML file, such as `recipes/quickstart.yaml`"
        )
    recipes = available()
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".yaml") and path.stem in recipes:
        return recipes[path.stem]
    if path.suffix in (".yaml", ".yml"):
        beside = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        near = get_close_matches(path.name, [*beside, *(f"{name}.yaml" for name in recipes)], n=1)
        named = str(path.parent / near[0]) if near and near[0] in beside else "".join(near)
        hint = f"did you mean `{named}`?" if near else "check the path, or name a shipped recipe: `quickstart`"
        raise ConfigurationError(f"there is no file `{recipe}`", hint)
    if path.parent in (Path(), Path("recipes")) and not path.suffix:
        near = get_close_matches(path.stem, recipes, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"the recipes are {', '.join(f'`{r}`' for r in recipes)}"
        raise ConfigurationError(f"there is no recipe `{recipe}`", hint)
    raise ConfigurationError(f"there is no file `{recipe}`", "check the path, or name a shipped recipe: `quickstart`")
