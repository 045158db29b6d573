"""A ResNet in Python's PyTorch against worker/train/models/resnet.cc (models_test.cc runs this).

usage: resnet_oracle.py resnet18|resnet50 FOLDER

FOLDER holds what C++ computed, each a dictionary of tensors: first.pt, the weights and buffers drawn after manual_seed(7);
batch.pt, input and target; result.pt, output, loss, "grad/" + name and "after/" + name (buffers) of one forward and backward in training mode from
first.pt, and eval_output afterwards. Draws and computes the same here. Prints one line for each difference; the status is 1 if there is any.
"""
import sys

import torch
from torch import nn


class Basic(nn.Module):
    expansion = 1

    def __init__(self, width_in, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Wide(nn.Module):
    expansion = 4

    def __init__(self, width_in, planes, stride, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.downsample = downsample

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class Net(nn.Module):
    def __init__(self, block, depths, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        width = 64
        for number, depth in enumerate(depths):
            planes, blocks = 64 << number, []
            for index in range(depth):
                stride = 2 if number > 0 and index == 0 else 1
                down = None
                if stride != 1 or width != planes * block.expansion:
                    down = nn.Sequential(nn.Conv2d(width, planes * block.expansion, 1, stride, bias=False),
                                         nn.BatchNorm2d(planes * block.expansion))
                blocks.append(block(width, planes, stride, down))
                width = planes * block.expansion
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


name, folder = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
first, batch, result = (torch.load(f"{folder}/{part}.pt", weights_only=False) for part in ("first", "batch", "result"))
torch.manual_seed(7)
net = Net(*{"resnet18": (Basic, [2, 2, 2, 2]), "resnet50": (Wide, [3, 4, 6, 3])}[name], 1000)
bad = []
drawn = net.state_dict()
if list(drawn) != list(first) and sorted(drawn) != sorted(first):
    bad.append(f"names: {sorted(set(drawn) ^ set(first))}")
for key in set(drawn) & set(first):
    if drawn[key].shape != first[key].shape or not torch.equal(drawn[key], first[key]):
        bad.append(f"first weights: {key}")
net.load_state_dict(dict(first), strict=False)
output = net(batch["input"])
loss = nn.functional.cross_entropy(output, batch["target"])
loss.backward()
mine = {"output": output.detach(), "loss": loss.detach(), **{"grad/" + key: p.grad for key, p in net.named_parameters()},
        **{"after/" + key: b for key, b in net.named_buffers()}}
net.eval()
with torch.no_grad():
    mine["eval_output"] = net(batch["input"])
if sorted(mine) != sorted(result):
    bad.append(f"results: {sorted(set(mine) ^ set(result))}")
worst = 0
for key in sorted(set(mine) & set(result)):
    # Both are single precision, through up to 50 layers with normalisations over a small batch.
    scale = mine[key].abs().max().item() + 1e-12
    apart = (mine[key].double() - result[key].double()).abs().max().item() / scale
    worst = max(worst, apart)
    if mine[key].shape != result[key].shape or not apart < 1e-3:
        bad.append(f"{key}: {apart:.3g} of its largest element")
print(f"{name}: {sum(p.numel() for p in net.parameters())} parameters, worst relative difference {worst:.3g}")
print("\n".join(bad))
sys.exit(bool(bad))
