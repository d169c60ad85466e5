//! Reading GGUF files, versions 2 and 3, little endian: the tensor table, metadata, and the bytes of tensors.
//!
//! A file is mapped, not read. Everything that a file says about itself is checked against its length before it is used;
//! nothing is allocated by a number that a file names.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::path::Path;

use crate::error::{Error, Result, check};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;
/// Arrays of arrays are possible; deeper ones than this serve nobody.
const MAX_DEPTH: u32 = 4;

/// Type number of ggml, values and bytes of a block: what is needed to know where a tensor ends.
const TYPES: &[(u32, u64, u64)] = &[
    (0, 1, 4),      // F32
    (1, 1, 2),      // F16
    (2, 32, 18),    // Q4_0
    (3, 32, 20),    // Q4_1
    (6, 32, 22),    // Q5_0
    (7, 32, 24),    // Q5_1
    (8, 32, 34),    // Q8_0
    (9, 32, 36),    // Q8_1
    (10, 256, 84),  // Q2_K
    (11, 256, 110), // Q3_K
    (12, 256, 144), // Q4_K
    (13, 256, 176), // Q5_K
    (14, 256, 210), // Q6_K
    (15, 256, 292), // Q8_K
    (16, 256, 66),  // IQ2_XXS
    (17, 256, 74),  // IQ2_XS
    (18, 256, 98),  // IQ3_XXS
    (19, 256, 50),  // IQ1_S
    (20, 32, 18),   // IQ4_NL
    (21, 256, 110), // IQ3_S
    (22, 256, 82),  // IQ2_S
    (23, 256, 136), // IQ4_XS
    (24, 1, 1),     // I8
    (25, 1, 2),     // I16
    (26, 1, 4),     // I32
    (27, 1, 8),     // I64
    (28, 1, 8),     // F64
    (29, 256, 56),  // IQ1_M
    (30, 1, 2),     // BF16
    (34, 256, 54),  // TQ1_0
    (35, 256, 66),  // TQ2_0
    (39, 32, 17),   // MXFP4
    (40, 64, 36),   // NVFP4
    (41, 128, 18),  // Q1_0
    (42, 64, 18),   // Q2_0
];

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its sizes in ggml's order: the length of a row first; one to four of them.
    pub shape: Vec<u64>,
    /// ggml's number of the element type.
    pub ggml_type: u32,
    /// Where its bytes are in the file.
    start: usize,
    len: usize,
}

/// A value of the metadata.
#[allow(missing_docs, reason = "the names say what they hold")]
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    /// The number of its elements, which are not kept.
    Array(u64),
}

/// An open file.
pub struct Gguf {
    bytes: Bytes,
    version: u32,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    metadata: HashMap<String, Value>,
}

impl fmt::Debug for Gguf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gguf {{ version: {}, tensors: {} }}", self.version, self.tensors.len())
    }
}

enum Bytes {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

impl Gguf {
    /// Maps a file. It must not be changed or cut while it is open.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the file when it cannot be opened, else the part that is wrong: the magic, the version,
    /// the end of the file before the end of what it announces, an unknown type of a value or a tensor, a row that is no
    /// whole number of blocks, a size that overflows, an alignment that is no power of two, a name that occurs twice, a
    /// tensor that is not aligned, not within the file, or overlaps another.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let failed =
            |e: std::io::Error| Error::invalid(format!("file {}", path.display()), "a readable file", e);
        let file = File::open(path).map_err(failed)?;
        let is_file = file.metadata().map_err(failed)?.is_file();
        check(is_file, &format!("file {}", path.display()), "a file", "something else")?;
        // SAFETY: the map is only read, as bytes, for which any content is valid. The documentation asks the caller to
        // leave the file alone; nothing here can hold another process back.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Gguf::parse(Bytes::Mapped(map))
    }

    /// A file that is in memory already.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf> {
        Gguf::parse(Bytes::Owned(bytes))
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by its name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of a tensor; `None` when the file has no such tensor.
    pub fn data(&self, name: &str) -> Option<&[u8]> {
        self.tensor(name).map(|t| &self.bytes.get()[t.start..t.start + t.len])
    }

    /// A value of the metadata.
    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    fn parse(bytes: Bytes) -> Result<Gguf> {
        let mut reader = Reader { bytes: bytes.get(), at: 0 };
        let magic = reader.take(4, "magic")?;
        check(magic == MAGIC, "magic", "GGUF", format!("{:?}", String::from_utf8_lossy(magic)))?;
        let version = reader.u32("version")?;
        check(
            matches!(version, 2 | 3),
            "version",
            "2 or 3, little endian",
            if matches!(version.swap_bytes(), 1..=3) {
                format!("{}, big endian", version.swap_bytes())
            } else {
                version.to_string()
            },
        )?;
        let tensor_count = reader.u64("number of tensors")?;
        let value_count = reader.u64("number of metadata values")?;

        let mut metadata = HashMap::new();
        for i in 0..value_count {
            let what = format!("metadata value {i}");
            let key = reader.string(&what)?;
            let kind = reader.u32(&key)?;
            let value = reader.value(kind, &key, 0)?;
            check(!metadata.contains_key(&key), &key, "once in the metadata", "twice")?;
            metadata.insert(key, value);
        }
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(Value::Unsigned(alignment)) if alignment.is_power_of_two() => *alignment,
            Some(other) => {
                return Err(Error::invalid("general.alignment", "a power of two", format!("{other:?}")));
            }
        };

        // Offsets count from the end of this table, which is known when it has been read.
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for i in 0..tensor_count {
            let (tensor, offset) = reader.tensor(i)?;
            check(
                offset.is_multiple_of(alignment),
                &format!("offset of {}", tensor.name),
                format!("a multiple of {alignment}"),
                offset,
            )?;
            let twice = by_name.insert(tensor.name.clone(), tensors.len()).is_some();
            check(!twice, &format!("tensor {}", tensor.name), "one of this name", "two")?;
            tensors.push((tensor, offset));
        }
        let whole = reader.bytes.len() as u64;
        let data = (reader.at as u64).next_multiple_of(alignment);
        let mut placed = Vec::new();
        for (mut tensor, offset) in tensors {
            let start = data.checked_add(offset);
            let end = start.and_then(|s| s.checked_add(tensor.len as u64));
            let (Some(start), Some(end)) = (start, end.filter(|&end| end <= whole || tensor.len == 0)) else {
                return Err(Error::invalid(
                    format!("tensor {}", tensor.name),
                    format!("within the file's {whole} bytes"),
                    format!("{} bytes at {offset} of the data at {data}", tensor.len),
                ));
            };
            // One of no bytes may stand where the file ends, and is given an empty place inside.
            tensor.start = if end <= whole { start as usize } else { 0 };
            placed.push(tensor);
        }
        let mut order: Vec<&Tensor> = placed.iter().filter(|t| t.len > 0).collect();
        order.sort_by_key(|t| t.start);
        for pair in order.windows(2) {
            check(
                pair[0].start + pair[0].len <= pair[1].start,
                &format!("tensor {}", pair[1].name),
                format!("bytes of its own, beyond {}", pair[0].start + pair[0].len),
                format!("{}, within tensor {}", pair[1].start, pair[0].name),
            )?;
        }
        Ok(Gguf { version, tensors: placed, by_name, metadata, bytes })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: u64, what: &str) -> Result<&'a [u8]> {
        let left = &self.bytes[self.at..];
        match usize::try_from(n).ok().filter(|&n| n <= left.len()) {
            Some(n) => {
                self.at += n;
                Ok(&left[..n])
            }
            None => {
                let got = format!("the end of the file after {}", left.len());
                Err(Error::invalid(what, format!("{n} bytes at {}", self.at), got))
            }
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.take(4, what)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let (low, high) = (self.u32(what)?, self.u32(what)?);
        Ok(u64::from(low) | u64::from(high) << 32)
    }

    fn string(&mut self, what: &str) -> Result<String> {
        let n = self.u64(what)?;
        let bytes = self.take(n, what)?;
        let text = std::str::from_utf8(bytes).map_err(|e| Error::invalid(what, "UTF-8", e))?;
        Ok(text.to_owned())
    }

    fn value(&mut self, kind: u32, what: &str, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.take(1, what)?[0].into()),
            1 => Value::Signed((self.take(1, what)?[0] as i8).into()),
            2 | 3 => {
                let b = self.take(2, what)?;
                let raw = u16::from_le_bytes([b[0], b[1]]);
                if kind == 2 { Value::Unsigned(raw.into()) } else { Value::Signed((raw as i16).into()) }
            }
            4 => Value::Unsigned(self.u32(what)?.into()),
            5 => Value::Signed((self.u32(what)? as i32).into()),
            6 => Value::Float(f32::from_bits(self.u32(what)?).into()),
            7 => Value::Bool(self.take(1, what)?[0] != 0),
            8 => Value::String(self.string(what)?),
            9 => {
                check(depth < MAX_DEPTH, what, format!("at most {MAX_DEPTH} arrays in one another"), "more")?;
                let kind = self.u32(what)?;
                let n = self.u64(what)?;
                let size = match kind {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    10..=12 => 8,
                    _ => 0,
                };
                if size > 0 {
                    self.take(n.saturating_mul(size), what)?;
                } else {
                    // Each takes bytes of the file, so that the loop ends with it.
                    for _ in 0..n {
                        self.value(kind, what, depth + 1)?;
                    }
                }
                Value::Array(n)
            }
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(self.u64(what)? as i64),
            12 => Value::Float(f64::from_bits(self.u64(what)?)),
            _ => return Err(Error::invalid(what, "a type of value from 0 to 12", kind)),
        })
    }

    /// An entry of the tensor table, with its offset.
    fn tensor(&mut self, i: u64) -> Result<(Tensor, u64)> {
        let name = self.string(&format!("name of tensor {i}"))?;
        let what = format!("tensor {name}");
        let dimensions = self.u32(&what)?;
        check(
            (1..=MAX_DIMENSIONS).contains(&dimensions),
            &format!("dimensions of {name}"),
            format!("1 to {MAX_DIMENSIONS}"),
            dimensions,
        )?;
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.push(self.u64(&what)?);
        }
        let ggml_type = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let Some(&(_, block, bytes)) = TYPES.iter().find(|(number, _, _)| *number == ggml_type) else {
            return Err(Error::invalid(format!("type of {name}"), "a type of ggml", ggml_type));
        };
        check(
            shape[0].is_multiple_of(block),
            &format!("row length of {name}"),
            format!("a multiple of the block's {block} values"),
            shape[0],
        )?;
        let row = (shape[0] / block).checked_mul(bytes);
        let len = row.and_then(|row| shape[1..].iter().try_fold(row, |len, &n| len.checked_mul(n)));
        let len = len.and_then(|len| usize::try_from(len).ok());
        let Some(len) = len else {
            return Err(Error::invalid(
                format!("size of {name}"),
                "a number of bytes that can be",
                format!("{shape:?}"),
            ));
        };
        Ok((Tensor { name, shape, ggml_type, start: 0, len }, offset))
    }
}
