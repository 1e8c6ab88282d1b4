"""Make caches with precompute_rotary_emb and apply them with apply_rotary_emb."""

import torch


def probe(target, tensors, arguments, tools):
    result: dict = {"errors": {}}
    try:
        precompute = tools["find"](arguments["precompute"], arguments["file"])
    except BaseException as error:
        precompute, result["missing"] = None, tools["describe"](error)
    apply = tools["find"](arguments["apply"])
    for number, case in enumerate(arguments["cases"]):
        cache, right = None, tensors[f"cache{number}"]
        if precompute is not None:
            try:
                cache = precompute(case["dim"], case["positions"])
                if not isinstance(cache, torch.Tensor):
                    what = "nothing: the return is missing" if cache is None else f"{type(cache).__name__}, no tensor"
                    raise TypeError(f"{arguments['precompute']} returned {what}")
                shown = torch.view_as_real(cache) if torch.is_complex(cache) else cache
                result[f"made{number}"] = shown.detach()
                result[f"complex{number}"] = torch.is_complex(cache)
            except Exception as error:
                result["errors"][f"made{number}"] = tools["describe"](error)
        fits = isinstance(cache, torch.Tensor) and cache.shape == right.shape
        for used in (right,) if fits or cache is None else (cache, right):
            try:
                result[f"out{number}"] = apply(tensors[f"x{number}"].clone(), used).detach()
                break
            except Exception as error:
                result["errors"][f"out{number}"] = tools["describe"](error)
    return result
