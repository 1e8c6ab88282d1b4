"""Call evaluate_places on files, and sample with a model whose next token is known."""

import os
import tempfile

import torch
from torch import nn


class Counter(nn.Module):
    """The logits of token i are largest for i + 3 (mod size), second largest for i + 5. It records how it is called."""

    def __init__(self, size, block_size):
        super().__init__()
        self.size, self.block_size = size, block_size
        self.weight = nn.Parameter(torch.zeros(1))
        self.lengths, self.modes, self.grads, self.inputs = [], [], [], []

    def get_block_size(self):
        return self.block_size

    def forward(self, idx, targets=None):
        self.lengths.append(idx.shape[1])
        self.inputs.append(idx.tolist())
        self.modes.append(self.training)
        self.grads.append(torch.is_grad_enabled())
        logits = torch.zeros(*idx.shape, self.size) + self.weight
        logits.scatter_(-1, ((idx + 3) % self.size)[..., None], 4.0)
        logits.scatter_(-1, ((idx + 5) % self.size)[..., None], 3.0)
        return logits, None


def probe(target, tensors, arguments, tools):
    folder = tempfile.mkdtemp()
    result: dict = {"errors": {}}
    for number, case in enumerate(arguments["cases"]):
        path = os.path.join(folder, f"{number}.tsv")
        with open(path, "w", encoding="utf-8") as file:
            file.write(case["text"])
        try:
            returned = target(path, case["predicted"])
            if not isinstance(returned, (tuple, list)) or len(returned) != 2:
                raise TypeError(f"it returned {returned!r:.40}, expected two numbers: total and correct")
            total, correct = returned
            result[f"case{number}"] = [float(total), float(correct)]
        except Exception as error:
            result["errors"][f"case{number}"] = tools["describe"](error)
    try:
        sample = tools["find"]("sample", arguments["file"])
    except BaseException as error:
        result["errors"]["sample"] = tools["describe"](error)
        return result
    for name, options in arguments["samples"].items():
        model = Counter(arguments["size"], arguments["block_size"]).train()
        try:
            result[name] = sample(model, tensors["tokens"].clone(), arguments["steps"], **options).detach()
            result[f"{name} lengths"] = model.lengths
            result[f"{name} inputs"] = model.inputs[:100]
            result[f"{name} modes"] = model.modes
            result[f"{name} grads"] = model.grads
        except Exception as error:
            result["errors"][name] = tools["describe"](error)
    return result
