"""Makes the files of tests/data, with NumPy, Pillow and safetensors."""
import numpy as np, sys, os
from PIL import Image
from safetensors.numpy import save_file
out = sys.argv[1]
rng = np.random.default_rng(1)
os.makedirs(out, exist_ok=True)

# Arrays: 40 images of 4x3 pixels in 4 classes, in several layouts.
x = rng.integers(0, 256, (40, 4, 3), dtype=np.uint8)
y = np.arange(40) % 4
rgb = rng.integers(0, 256, (40, 4, 5, 3), dtype=np.uint8)
np.savez(f"{out}/whole.npz", x=x, y=y)
np.savez_compressed(f"{out}/split.npz", x_train=rgb[:30], y_train=y[:30].astype(np.uint8), x_test=rgb[30:], y_test=y[30:].astype(np.int32))
np.savez(f"{out}/floats.npz", x_train=(x[:30] / 255).astype(np.float32), y_train=y[:30].astype(">i2"), x_test=(x[30:] / 255), y_test=y[30:].reshape(-1, 1))
np.savez_compressed(f"{out}/fortran.npz", images=np.asfortranarray(x), labels=y.astype(np.float64))
save_file({"x_train": np.ascontiguousarray(rgb[:30].transpose(0, 3, 1, 2)), "y_train": y[:30], "x_test": np.ascontiguousarray(rgb[30:].transpose(0, 3, 1, 2)), "y_test": y[30:]}, f"{out}/planar.safetensors")
np.savez(f"{out}/far.npz", x=rng.normal(size=(40, 6)), y=y)
np.savez(f"{out}/objects.npz", x=np.array([[None] * 3] * 40, dtype=object), y=y)
np.savez(f"{out}/hot.npz", x=x, y=np.eye(4)[y])

# Pictures: what Pillow and torchvision's Resize and CenterCrop make of them, as .npz.
def fitted(image, size):
    w, h = image.size
    if w <= h: w, h = size, int(size * h / w)
    else: w, h = int(size * w / h), size
    image = image.resize((w, h), Image.BILINEAR)
    left, top = int(round((w - size) / 2.0)), int(round((h - size) / 2.0))
    return image.crop((left, top, left + size, top + size))

yy, xx = np.mgrid[0:23, 0:31]
photo = np.stack([xx * 8, yy * 11, (xx * yy) % 256], -1).astype(np.uint8)
noise = rng.integers(0, 256, (40, 29, 3), dtype=np.uint8)
expected = {'train': [], 'test': []}
labels = {'train': [], 'test': []}
for split, names in [("train", ["cat", "dog"]), ("test", ["cat", "dog"])]:
    for name in names:
        os.makedirs(f"{out}/pictures/{split}/{name}", exist_ok=True)
def save(path, image, **options):
    image.save(f"{out}/pictures/{path}", **options)
    opened = Image.open(f"{out}/pictures/{path}")
    split, name = path.split("/")[:2]
    expected[split].append(np.asarray(fitted(opened.convert("RGB"), 12)))
    labels[split].append(["cat", "dog"].index(name))
save("train/cat/a-rgb.png", Image.fromarray(photo))
save("train/cat/b-photo.jpg", Image.fromarray(photo), quality=95)
save("train/cat/c-progressive.JPEG", Image.fromarray(photo), quality=90, progressive=True)
save("train/cat/d-gray.jpg", Image.fromarray(photo).convert("L"), quality=95)
save("train/dog/a-noise.png", Image.fromarray(noise))
save("train/dog/b-palette.png", Image.fromarray(photo).quantize(16))
save("train/dog/c-alpha.png", Image.fromarray(np.concatenate([photo, photo[..., :1]], -1)))
save("train/dog/d-small.png", Image.fromarray(noise[:7, :9]))
save("train/dog/e-bits.png", Image.fromarray((photo[..., 0] > 100)))
save("test/cat/a-gray.png", Image.fromarray(photo[..., 1]))
save("test/dog/a-noise.png", Image.fromarray(noise[:, ::-1].copy()))
np.savez_compressed(f"{out}/pictures.npz", x_train=np.stack(expected["train"]), y_train=labels["train"], x_test=np.stack(expected["test"]), y_test=labels["test"])
print(rgb[0, 1, 2], rgb[31, 3, 4], x[7], int(rgb[:30].sum()))
