"""bench-ddp's MLP and resnet18 (ddp_task.h) in Python's torch."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        return F.relu(y.add_(self.downsample(x) if self.downsample else x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.layers = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1), Block(64, 128, 2), Block(128, 128, 1),
                                    Block(128, 256, 2), Block(256, 256, 1), Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))


def mlp():
    return nn.Sequential(*[part for _ in range(8) for part in (nn.Linear(1024, 1024), nn.ReLU())])


def task(name, rank):
    """The model, its loss, and the rank's batch."""
    torch.manual_seed(1)
    random = torch.Generator().manual_seed(100 + rank)
    if name == "mlp":
        return mlp(), F.mse_loss, torch.randn(64, 1024, generator=random), torch.randn(64, 1024, generator=random)
    return (ResNet18(), F.cross_entropy, torch.randn(16, 3, 64, 64, generator=random),
            torch.randint(10, (16,), generator=random))
