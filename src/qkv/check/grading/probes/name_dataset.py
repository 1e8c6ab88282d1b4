"""Build a NameDataset on a stand-in for the pretraining dataset and read its items."""

import torch


class Pretraining:
    """A dataset with a vocabulary of its own and a block size."""

    MASK_CHAR, PAD_CHAR = "\u2047", "\u25a1"

    def __init__(self, letters, block_size):
        self.itos = dict(enumerate(letters))
        self.stoi = {letter: index for index, letter in self.itos.items()}
        self.block_size, self.vocab_size, self.data = block_size, len(letters), []

    def __len__(self):
        return 100


def probe(target, tensors, arguments, tools):
    pretraining = Pretraining(arguments["letters"], arguments["block_size"])
    dataset = tools["build"](target, {"pretraining_dataset": pretraining, "data": arguments["data"]})
    result = {"length": len(dataset), "types": []}
    for number in range(arguments["count"]):
        x, y = dataset[number]
        result["types"].append([str(getattr(x, "dtype", type(x).__name__)), str(getattr(y, "dtype", type(y).__name__))])
        result[f"x{number}"] = torch.as_tensor(x).long()
        result[f"y{number}"] = torch.as_tensor(y).long()
    return result
