"""Small PyTorch modules of the kinds that people bring, written as they write them."""

import torch
from torch import nn
from torch.nn import functional


class Basic(nn.Module):
    """The block of ResNet-18 and ResNet-20."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential() if same else projection(inputs, outputs, stride)

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        width = outputs // 4
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else projection(inputs, outputs, stride)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += self.shortcut(x)
        return self.relu(y)


def projection(inputs, outputs, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    def __init__(self, block, widths, depths, stem=None, classes=10):
        super().__init__()
        first = widths[0] if stem is None else stem
        self.stem = nn.Sequential(nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU())
        self.pool = nn.MaxPool2d(3, stride=2, padding=1) if stem else nn.Identity()
        layers, channels = [], first
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for place in range(depth):
                layers.append(block(channels, width, 2 if number and not place else 1))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        y = self.layers(self.pool(self.stem(x)))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(y, 1), 1))


def resnet18():
    return ResNet(Basic, (4, 8, 16, 32), (2, 2, 2, 2))


def resnet20():
    return ResNet(Basic, (4, 8, 16), (3, 3, 3))


def resnet50():
    return ResNet(Bottleneck, (8, 16, 24, 32), (3, 4, 6, 3), stem=4)


def vgg11():
    layers, channels = [], 3
    for width in (4, "M", 8, "M", 8, 8, "M", 16, 16, "M", 16, 16):
        if width == "M":
            layers.append(nn.MaxPool2d(2, 2))
            continue
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10))


class Inverted(nn.Module):
    """The block of MobileNetV2: wide, depthwise, narrow."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        wide = 4 * inputs
        self.same = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


def mobilenet():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Hardswish(), Inverted(4, 4, 1), Inverted(4, 8, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def resnext():
    """Convolutions in groups of several channels, one of them dilated."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1), nn.Conv2d(8, 12, 3, 2, 1, groups=4),
        nn.ELU(), nn.Conv2d(12, 8, 3, padding=2, dilation=2, groups=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


class ViT(nn.Module):
    def __init__(self, width=16, patch=4, size=8, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        return self.head(self.blocks(x)[:, 0])


class Attend(nn.Module):
    """Causal attention as in GPT-2: one projection for queries, keys and values, and a mask in a buffer."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads
        self.register_buffer("past", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x):
        rows, length, width = x.shape
        split = lambda part: part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = map(split, self.c_attn(x).split(width, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        scores = scores.masked_fill(self.past[:, :, :length, :length] == 0, float("-inf"))
        y = functional.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width))


class GPT(nn.Module):
    """The weights of the last layer are those of the embedding."""

    def __init__(self, alphabet=11, width=16, heads=2, length=6):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(alphabet, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend = Attend(width, heads, length)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(approximate="tanh"), nn.Linear(32, width))
        self.lm_head = nn.Linear(width, alphabet, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        x = x + self.attend(self.norms[0](x))
        x = x + self.mlp(self.norms[1](x))
        return self.lm_head(x)


class Text(nn.Module):
    """A recurrent network over embedded characters."""

    def __init__(self, kind, alphabet=11, width=8, classes=5, **options):
        super().__init__()
        self.embed = nn.Embedding(alphabet, 6, padding_idx=0)
        self.recurrent = kind(6, width, batch_first=True, **options)
        self.out = nn.Linear(8, classes)

    def forward(self, tokens):
        states, _ = self.recurrent(self.embed(tokens))
        return self.out(states[:, -1])


class UNet(nn.Module):
    """One number for each pixel: down, up by a transposed convolution and by interpolation, and across."""

    def __init__(self):
        super().__init__()
        both = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
        self.down1, self.down2, self.bottom = both(3, 4), both(4, 8), both(8, 8)
        self.up2, self.join2 = nn.ConvTranspose2d(8, 8, 2, stride=2), both(16, 4)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.join1, self.out = both(8, 4), nn.Conv2d(4, 1, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        low = self.bottom(functional.avg_pool2d(two, 2))
        two = self.join2(torch.cat([self.up2(low), two], dim=1))
        return self.out(self.join1(torch.cat([self.up1(two), one], dim=1))).flatten(1)


class GroupNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding="same", bias=False), nn.InstanceNorm2d(8, affine=True)
        self.out = nn.Linear(8, 10)

    def forward(self, x):
        x = functional.relu(self.norm1(self.conv1(x)))
        return self.out(functional.softplus(self.norm2(self.conv2(x))).mean((2, 3)))


class LeNet(nn.Module):
    """The CNN of PyTorch's CIFAR-10 tutorial, with dropout."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3)
        self.pool, self.drop = nn.MaxPool2d(2, 2), nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = functional.relu(self.conv1(x))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x[:, :, :1, :1].reshape(-1, 8)
        return self.fc2(self.drop(functional.relu(self.fc1(x))))


def normed_mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(192, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.LayerNorm(16), nn.PReLU(),
        nn.Linear(16, 10), nn.LogSoftmax(dim=1),
    )  # fmt: skip


class Encoder(nn.Module):
    """PyTorch's transformer encoder with a mask of padding, rows second as it likes them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, 5)

    def forward(self, tokens):
        y = self.blocks(self.embed(tokens).transpose(0, 1), src_key_padding_mask=tokens == 0)
        return self.out(y.mean(0))


class Sensors(nn.Module):
    """Windows of a sensor: convolutions of one axis, normalized, and a mean and a maximum over time."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, 8, 5, 2), nn.BatchNorm1d(8), nn.ReLU(), nn.MaxPool1d(2))
        self.up = nn.ConvTranspose1d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        y = self.up(self.conv(x.flatten(2)))
        return self.out(torch.cat([y.mean(-1), y.amax(-1)], 1))


IMAGES, TOKENS = (3, 8, 8), (6,)
ZOO = {
    "ResNet-18": (resnet18, IMAGES),
    "ResNet-20": (resnet20, IMAGES),
    "ResNet-50": (resnet50, IMAGES),
    "VGG-11": (vgg11, (3, 16, 16)),
    "MobileNet": (mobilenet, IMAGES),
    "ResNeXt": (resnext, IMAGES),
    "ViT": (ViT, IMAGES),
    "GPT": (GPT, TOKENS),
    "LSTM": (lambda: Text(nn.LSTM, num_layers=2), TOKENS),
    "LSTM, both ways": (lambda: Text(nn.LSTM, bidirectional=True, proj_size=4), TOKENS),
    "GRU": (lambda: Text(nn.GRU, num_layers=2), TOKENS),
    "RNN": (lambda: Text(nn.RNN, nonlinearity="relu", bias=False), TOKENS),
    "U-Net": (UNet, IMAGES),
    "GroupNorm": (GroupNormed, IMAGES),
    "LeNet, dropout": (LeNet, IMAGES),
    "MLP": (normed_mlp, IMAGES),
    "encoder": (Encoder, TOKENS),
    "1-D": (Sensors, IMAGES),
}


def inputs_of(shape, rows=4, seed=0):
    """Rows for a module of the zoo."""
    made = torch.Generator().manual_seed(seed)
    if shape == TOKENS:
        tokens = torch.randint(1, 11, (rows, *shape), generator=made)
        tokens[0, -2:] = 0  # padding
        return tokens
    return torch.randn(rows, *shape, generator=made)


def built(name):
    """A module of the zoo, its running statistics moved from where they start."""
    make, shape = ZOO[name]
    torch.manual_seed(0)
    module = make().train()
    with torch.no_grad():
        for seed in (1, 2):
            module(inputs_of(shape, seed=seed))
    return module, inputs_of(shape)
