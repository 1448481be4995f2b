//! NumPy's files of several arrays (`.npz`): a ZIP archive of `.npy` files, stored or deflated.

use super::array::{Array, Kind};
use std::io::Read;

/// A file in the archive.
struct Member {
    name: String,
    method: u16,
    checksum: u32,
    packed: usize,
    unpacked: usize,
    /// Where its local header is.
    offset: usize,
}

/// Signatures of ZIP records, as little-endian numbers.
const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// The size of the record at the end of an archive, and of the longest comment after it.
const END_SIZE: usize = 22;
const MAX_COMMENT: usize = 65_535;

/// Reads all arrays.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Array<'static>>, String> {
    let members = directory(bytes).ok_or("it is no valid .npz file: its directory cannot be read")?;
    let mut arrays = Vec::new();
    for member in members {
        let Some(name) = member.name.strip_suffix(".npy") else {
            continue;
        };
        let failed = |what: String| format!("{name}: {what}");
        arrays.push(array(name, member.content(bytes).map_err(failed)?).map_err(failed)?);
    }
    Ok(arrays)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

fn signature(bytes: &[u8], at: usize) -> Option<u32> {
    number::<4>(bytes, at).map(|number| number as u32)
}

/// The files of an archive. `None` if it is damaged.
fn directory(bytes: &[u8]) -> Option<Vec<Member>> {
    let last = bytes.len().checked_sub(END_SIZE)?;
    let end = (last.saturating_sub(MAX_COMMENT)..=last).rev().find(|&at| signature(bytes, at) == Some(END))?;
    let (mut count, mut at) = (number::<2>(bytes, end + 10)?, number::<4>(bytes, end + 16)?);
    // Archives of more than 4 GB have another record, whose place is in a locator before the end.
    if let Some(locator) = end.checked_sub(20)
        && signature(bytes, locator) == Some(0x0706_4b50)
    {
        let end64 = usize::try_from(number::<8>(bytes, locator + 8)?).ok()?;
        (signature(bytes, end64)? == END64).then_some(())?;
        (count, at) = (number::<8>(bytes, end64 + 32)?, number::<8>(bytes, end64 + 48)?);
    }
    let mut at = usize::try_from(at).ok()?;
    let mut members = Vec::new();
    for _ in 0..count {
        (signature(bytes, at)? == CENTRAL).then_some(())?;
        let length = |field: usize| number::<2>(bytes, at + field).map(|length| length as usize);
        let (name, extra, comment) = (length(28)?, length(30)?, length(32)?);
        let fields = [number::<4>(bytes, at + 24)?, number::<4>(bytes, at + 20)?, number::<4>(bytes, at + 42)?];
        let [unpacked, packed, offset] = large_fields(fields, bytes.get(at + 46 + name..at + 46 + name + extra)?)?;
        members.push(Member {
            name: String::from_utf8_lossy(bytes.get(at + 46..at + 46 + name)?).into_owned(),
            method: number::<2>(bytes, at + 10)? as u16,
            checksum: number::<4>(bytes, at + 16)? as u32,
            packed,
            unpacked,
            offset,
        });
        at += 46 + name + extra + comment;
    }
    Some(members)
}

/// Fields that do not fit into 32 bits are in an extra field, in this order.
fn large_fields(fields: [u64; 3], mut extra: &[u8]) -> Option<[usize; 3]> {
    let mut large: &[u8] = &[];
    while let (Some(kind), Some(size)) = (number::<2>(extra, 0), number::<2>(extra, 2)) {
        let content = extra.get(4..4 + size as usize)?;
        if kind == 1 {
            large = content;
        }
        extra = &extra[4 + size as usize..];
    }
    let mut found = [0; 3];
    for (to, field) in found.iter_mut().zip(fields) {
        let value = match field {
            0xffff_ffff => {
                let value = number::<8>(large, 0)?;
                large = &large[8..];
                value
            }
            small => small,
        };
        *to = usize::try_from(value).ok()?;
    }
    Some(found)
}

impl Member {
    /// The unpacked content.
    fn content(&self, archive: &[u8]) -> Result<Vec<u8>, String> {
        let packed = self.packed_content(archive).ok_or("it is cut off")?;
        let content = match self.method {
            0 => packed.to_vec(),
            8 => {
                let mut content = Vec::new();
                let limit = self.unpacked as u64 + 1; // a decompression bomb then only fails the length check
                let unpacked = flate2::read::DeflateDecoder::new(packed).take(limit).read_to_end(&mut content);
                unpacked.map_err(|error| format!("it cannot be unpacked: {error}"))?;
                content
            }
            _ => return Err("it is packed in an unknown way: use numpy.savez or numpy.savez_compressed".into()),
        };
        match content.len() == self.unpacked && crc32fast::hash(&content) == self.checksum {
            true => Ok(content),
            false => Err("it is damaged: its checksum is wrong".into()),
        }
    }

    fn packed_content<'a>(&self, archive: &'a [u8]) -> Option<&'a [u8]> {
        (signature(archive, self.offset)? == LOCAL).then_some(())?;
        let [name, extra] = [26, 28].map(|field| number::<2>(archive, self.offset + field));
        let start = self.offset + 30 + name? as usize + extra? as usize;
        archive.get(start..start.checked_add(self.packed)?)
    }
}

/// An `.npy` file: a header that is a Python dictionary, then the elements.
fn array(name: &str, bytes: Vec<u8>) -> Result<Array<'static>, String> {
    let invalid = || "it is no valid .npy file".to_owned();
    let [b'\x93', b'N', b'U', b'M', b'P', b'Y', version, _] = bytes.get(..8).ok_or_else(invalid)? else {
        return Err(invalid());
    };
    let (start, length) = match version {
        1 => (10, number::<2>(&bytes, 8)),
        _ => (12, number::<4>(&bytes, 8)),
    };
    let end = start + length.ok_or_else(invalid)? as usize;
    let header = bytes.get(start..end).and_then(|header| std::str::from_utf8(header).ok()).ok_or_else(invalid)?;
    let field = |key: &str| {
        let (_, rest) = header.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let is_fortran = field("fortran_order").ok_or_else(invalid)?.starts_with("True");
    let shape = field("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).ok_or_else(invalid)?.0;
    let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape = sides.map(|side| side.parse().ok()).collect::<Option<Vec<usize>>>().ok_or_else(invalid)?;
    let kind = field("descr").ok_or_else(invalid)?;
    let kind = match kind.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
        Some((kind, _)) => kind,
        None => return Err("its elements are records: write arrays of numbers".into()),
    };
    let (order, kind) = kind.split_at_checked(1).ok_or_else(invalid)?;
    let mut array = Array::new(name.into(), shape, Kind::of_numpy(kind), bytes[end..].to_vec());
    (array.is_fortran, array.is_big_endian) = (is_fortran, order == ">");
    Ok(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, elements: &[u8]) -> Result<Array<'static>, String> {
        let mut bytes = b"\x93NUMPY\x01\0".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(elements);
        array("x", bytes)
    }

    #[test]
    fn headers_that_do_not_fit_the_content_are_errors() {
        let header =
            |kind: &str, shape: &str| format!("{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}");
        let good = npy(&header("'<i2'", "(2, 1)"), &[1, 0, 255, 255]).unwrap();
        assert_eq!(good.values().unwrap().collect::<Vec<_>>(), [1.0, -1.0]);
        for shape in ["(3, 1)", "(2,)", "(0, 1)", "(4294967296, 4294967296, 4294967296, 4294967296)"] {
            let array = npy(&header("'|u2'", shape), &[0; 6]).unwrap();
            let _ = array.image_shape();
            assert!(array.values().is_err() || shape == "(3, 1)", "{shape}");
        }
        assert!(npy(&header("'<i2'", "(-1, 2)"), &[]).is_err());
        assert!(npy(&header("[('a', '<i2')]", "(1,)"), &[]).is_err_and(|error| error.contains("records")));
        assert!(npy(&header("''", "(1,)"), &[]).is_err());
        assert!(npy("{}", &[]).is_err());
        assert!(array("x", b"\x93NUMPY\x01\0\xff\xff".to_vec()).is_err());
    }
}
