//! Pictures from PNG and JPEG files, and their scaling.

/// The pixels of an image file.
pub(super) struct Picture {
    width: usize,
    height: usize,
    /// 1 (gray) or 3 (red, green, blue).
    pub(super) channels: usize,
    /// Row by row, the channels of a pixel side by side.
    pixels: Vec<u8>,
}

/// The most pixels of a picture.
const MAX_PIXELS: usize = 1 << 27;

impl Picture {
    /// Decodes a PNG or JPEG file, whatever its name. Transparency is ignored.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        match bytes {
            [0x89, b'P', b'N', b'G', ..] => decode_png(bytes),
            [0xff, 0xd8, ..] => decode_jpeg(bytes),
            _ => Err("it is neither a PNG nor a JPEG file".into()),
        }
    }

    /// Channels, height, width.
    pub(super) fn shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// Takes 2 channels with transparency to 1, and 4 to 3.
    fn opaque(width: usize, height: usize, channels: usize, pixels: Vec<u8>) -> Result<Self, String> {
        let kept = match channels {
            1 | 3 => return Ok(Self { width, height, channels, pixels }),
            2 => 1,
            4 => 3,
            other => return Err(format!("it has {other} channels, which is not supported")),
        };
        let pixels = pixels.chunks_exact(channels).flat_map(|pixel| pixel[..kept].iter().copied()).collect();
        Ok(Self { width, height, channels: kept, pixels })
    }

    /// Scales the shorter side to `size` and crops the center, as torchvision's `Resize` and `CenterCrop` do.
    pub(super) fn fitted(self, size: usize) -> Self {
        let (short, long) = (self.width.min(self.height), self.width.max(self.height));
        let scaled_long = size * long / short;
        let (width, height) = if self.width <= self.height { (size, scaled_long) } else { (scaled_long, size) };
        self.scaled(width, height).cropped(size)
    }

    /// Bilinear interpolation. Where the picture shrinks, the filter becomes wider (antialiasing), as in Pillow.
    fn scaled(self, width: usize, height: usize) -> Self {
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let channels = self.channels;
        // First every row, then every column.
        let row = self.width * channels;
        let horizontal = filters(self.width, width);
        let mut narrow = Vec::with_capacity(self.height * width * channels);
        for pixels in self.pixels.chunks_exact(row) {
            for (first, weights) in &horizontal {
                for channel in 0..channels {
                    let start = first * channels + channel;
                    narrow.push(weighted(weights, pixels[start..].iter().step_by(channels)));
                }
            }
        }
        let row = width * channels;
        let mut pixels = Vec::with_capacity(height * row);
        for (first, weights) in filters(self.height, height) {
            for column in 0..row {
                pixels.push(weighted(&weights, narrow[first * row + column..].iter().step_by(row)));
            }
        }
        Self { width, height, channels, pixels }
    }

    /// The square of side `size` in the middle.
    fn cropped(self, size: usize) -> Self {
        // Python rounds halves to even numbers.
        let offset = |side: usize| ((side - size) as f64 / 2.0).round_ties_even() as usize;
        let (left, top, channels) = (offset(self.width), offset(self.height), self.channels);
        let rows = self.pixels.chunks_exact(self.width * channels).skip(top).take(size);
        let pixels = rows.flat_map(|row| row[left * channels..][..size * channels].iter().copied()).collect();
        Self { width: size, height: size, channels, pixels }
    }

    /// Appends the pixels channel by channel. A gray picture may become one of three channels.
    pub(super) fn append_channels(&self, channels: usize, to: &mut Vec<u8>) {
        for channel in 0..channels {
            to.extend(self.pixels.iter().skip(channel.min(self.channels - 1)).step_by(self.channels));
        }
    }
}

/// For each of `to` pixels, the first of the `from` pixels that it depends on, and their weights.
fn filters(from: usize, to: usize) -> Vec<(usize, Vec<f64>)> {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let filter = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let triangle = |x: usize| (1.0 - ((x as f64 - center + 0.5) / support).abs()).max(0.0);
        let weights: Vec<f64> = (first..end).map(triangle).collect();
        let sum: f64 = weights.iter().sum();
        (first, weights.iter().map(|weight| weight / sum).collect())
    };
    (0..to).map(filter).collect()
}

fn weighted<'a>(weights: &[f64], pixels: impl Iterator<Item = &'a u8>) -> u8 {
    let sum: f64 = weights.iter().zip(pixels).map(|(weight, &pixel)| weight * f64::from(pixel)).sum();
    (sum + 0.5) as u8
}

fn check_pixels(width: usize, height: usize) -> Result<(), String> {
    match width.checked_mul(height) {
        Some(1..=MAX_PIXELS) => Ok(()),
        _ => Err(format!("{width}x{height} pixels are not supported")),
    }
}

fn decode_png(bytes: &[u8]) -> Result<Picture, String> {
    let failed = |error: png::DecodingError| format!("it is no valid PNG file: {error}");
    let mut decoder = png::Decoder::new(std::io::Cursor::new(bytes));
    // Palettes become colors, and 16 bits become 8.
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(failed)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_pixels(width, height)?;
    let mut pixels = vec![0; reader.output_buffer_size().unwrap_or(0)];
    let frame = reader.next_frame(&mut pixels).map_err(failed)?;
    pixels.truncate(frame.buffer_size());
    Picture::opaque(width, height, frame.color_type.samples(), pixels)
}

#[cfg(feature = "jpeg")]
fn decode_jpeg(bytes: &[u8]) -> Result<Picture, String> {
    use zune_jpeg::zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
    let failed = |error| format!("it is no valid JPEG file: {error:?}");
    let header = |options| {
        let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
        decoder.decode_headers().map_err(failed).map(|()| decoder)
    };
    let options = DecoderOptions::default().set_max_width(1 << 16).set_max_height(1 << 16);
    let is_gray = header(options)?.input_colorspace() == Some(ColorSpace::Luma);
    let colors = if is_gray { ColorSpace::Luma } else { ColorSpace::RGB };
    let mut decoder = header(options.jpeg_set_out_colorspace(colors))?;
    let (width, height) = decoder.dimensions().ok_or("it is no valid JPEG file: it has no size")?;
    check_pixels(width, height)?;
    let pixels = decoder.decode().map_err(failed)?;
    Picture::opaque(width, height, if is_gray { 1 } else { 3 }, pixels)
}

#[cfg(not(feature = "jpeg"))]
fn decode_jpeg(_: &[u8]) -> Result<Picture, String> {
    Err("it is a JPEG file, which this program does not read: build it with the feature `jpeg`".into())
}
