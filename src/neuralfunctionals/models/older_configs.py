"""Configs of models from before specs recorded frequency and convention: `modernize`, `told_by_run`."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.files.strict_json import JsonError, read_json
from neuralfunctionals.inr import SirenForm
from neuralfunctionals.inr.siren import as_siren, can_be_siren
from neuralfunctionals.weight_space import Activation, NetworkSpec
from neuralfunctionals.weight_space.axes import DEFAULT_OMEGA


def told_by_run(model: Path) -> dict[str, Any]:
    """The form of sine networks that the run of a model's directory records; empty if there is none."""
    try:
        form = SirenForm.from_provenance(read_json(model.parent / "run.json")["data"])  # pyright: ignore
    except (OSError, JsonError, UserError, KeyError, TypeError):
        return {}
    return {} if form is None else asdict(form)


def modernize(
    kind: type[Any], config: Mapping[str, Any], told: Mapping[str, Any], find: Callable[[Any], type[Any]]
) -> dict[str, Any]:
    """Converts the config of an older model to current arguments: omega and convention go into the spec.

    Args:
        kind: The model's class.
        config: The constructor's arguments as JSON.
        told: `omega` and `convention` of the networks that the model was trained on, as far as known.
        find: Returns the class with a given name, for models inside others.
    """
    arguments, takes = dict(config), inspect.signature(kind).parameters
    if "omega" in takes:
        return arguments
    is_named, omega = "omega" in arguments, arguments.pop("omega", None)
    if isinstance(arguments.get("spec"), Mapping):
        spec = NetworkSpec.from_dict(arguments["spec"])
        if not is_named and can_be_siren(spec):
            omega = told.get("omega")
        if omega is not None and spec.is_chain and all(layer.activation is None for layer in spec.layers):
            spec = spec.with_activation(Activation("sine", omega), convention=told.get("convention"))
            arguments["spec"] = spec.to_dict()
        if "canonical" in takes and arguments.get("canonical") in ("none", "sine"):
            is_sine = arguments["canonical"] == "sine"
            arguments["canonical"] = {"spec": as_siren(spec).to_dict()} if is_sine else None
    inner = arguments.get("model")
    if isinstance(inner, Mapping) and isinstance(inner.get("config"), Mapping):
        made = modernize(find(inner.get("class")), inner["config"], told, find)
        arguments["model"] = {**inner, "config": made}
        spec = NetworkSpec.from_dict(made["spec"])
        if "symmetry" in takes and arguments.get("symmetry") is None and spec.activation is None:
            sines = spec.with_activation(Activation("sine", DEFAULT_OMEGA if omega is None else omega))
            arguments["symmetry"] = {"spec": sines.to_dict()}
    return arguments
