"""ResNet-50 in torch.nn (He et al. 2016, table 1), with a stage's stride in its first 3x3 convolution.

Every operation in it has a deterministic kernel on CUDA: the last pooling is a mean.
"""

from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
EXPANSION = 4


def convolution(inputs, outputs, side, stride=1):
    """A convolution that keeps the size but for its stride, and its normalisation."""
    made = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return [made, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and what came in added to what comes out."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = EXPANSION * width
        self.body = nn.Sequential(
            *convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Sequential(*convolution(inputs, outputs, 1, stride))
        self.last = nn.ReLU(inplace=True)

    def forward(self, images):
        return self.last(self.body(images) + self.around(images))


def resnet50():
    """The model, in training mode, with weights from torch's current seed."""
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, stride=2, padding=1)]
    inputs = 64
    for width, blocks, stride in STAGES:
        for index in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = EXPANSION * width
    return nn.Sequential(*layers, Mean(), nn.Linear(inputs, 1000))


class Mean(nn.Module):
    """Each channel's mean over the image."""

    def forward(self, images):
        return images.mean((2, 3))
