"""Build a CharCorruptionDataset and read items of it."""

import torch


def probe(target, tensors, arguments, tools):
    dataset = tools["build"](target, {"data": arguments["data"], "block_size": arguments["block_size"]})
    itos = getattr(dataset, "itos", None)
    stoi = getattr(dataset, "stoi", None)
    pairs = itos.items() if isinstance(itos, dict) else enumerate(itos or [])
    result = {
        "length": len(dataset),
        "itos": [[int(index), str(letter)] for index, letter in pairs],
        "stoi": [[str(letter), int(index)] for letter, index in (stoi or {}).items()],
        "types": [],
    }
    for number, index in enumerate(arguments["indices"]):
        x, y = dataset[index]
        result["types"].append([str(getattr(x, "dtype", type(x).__name__)), str(getattr(y, "dtype", type(y).__name__))])
        result[f"x{number}"] = torch.as_tensor(x).long()
        result[f"y{number}"] = torch.as_tensor(y).long()
    return result
