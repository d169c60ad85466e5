//! The GGUF reader: what it reads, and that every malformed file is an error that names the part that is wrong.

use proptest::prelude::*;
use samebits::Error;
use samebits::gguf::{Gguf, Value};

/// Writes files, as wrong as wanted.
#[derive(Clone)]
struct Writer {
    magic: [u8; 4],
    version: u32,
    tensor_count: Option<u64>,
    value_count: Option<u64>,
    /// Key, type, bytes.
    values: Vec<(&'static str, u32, Vec<u8>)>,
    /// Name, sizes, type, offset.
    tensors: Vec<(&'static str, Vec<u64>, u32, u64)>,
    data: usize,
}

const F32: u32 = 0;
const Q8_0: u32 = 8;

/// Two tensors of 32 and 34 bytes at offsets 0 and 32.
fn valid() -> Writer {
    Writer {
        magic: *b"GGUF",
        version: 3,
        tensor_count: None,
        value_count: None,
        values: vec![("a.number", 4, 7u32.to_le_bytes().into()), ("a.text", 8, string("yes"))],
        tensors: vec![("one", vec![4, 2], F32, 0), ("two", vec![32, 1, 1], Q8_0, 32)],
        data: 66,
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn array(kind: u32, n: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &n.to_le_bytes(), elements].concat()
}

impl Writer {
    fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.value_count.unwrap_or(self.values.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.values {
            out.extend(string(key));
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
        for (name, shape, kind, offset) in &self.tensors {
            out.extend(string(name));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend((0..self.data).map(|i| i as u8));
        out
    }
}

/// Reads a file that is wrong, and gives what the error names.
fn refused(change: impl FnOnce(&mut Writer)) -> String {
    let mut writer = valid();
    change(&mut writer);
    match Gguf::from_bytes(writer.bytes()) {
        Err(Error::Invalid { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_versions_are_read() {
    for version in [2, 3] {
        let file = Gguf::from_bytes(Writer { version, ..valid() }.bytes()).unwrap();
        assert_eq!(file.version(), version);
        assert_eq!(file.metadata("a.number"), Some(&Value::Unsigned(7)));
        assert_eq!(file.metadata("a.text"), Some(&Value::String("yes".into())));
        assert_eq!(file.metadata("nothing"), None);
        let names: Vec<&str> = file.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
        let two = file.tensor("two").unwrap();
        assert_eq!((two.shape.as_slice(), two.ggml_type), (&[32, 1, 1][..], Q8_0));
        assert_eq!(file.data("one").unwrap(), (0..32).collect::<Vec<u8>>());
        assert_eq!(file.data("two").unwrap(), (32..66).collect::<Vec<u8>>());
        assert_eq!(file.data("three"), None);
    }
}

#[test]
fn every_type_of_value_is_read() {
    let mut writer = valid();
    writer.values = vec![
        ("u8", 0, vec![200]),
        ("i8", 1, vec![0xff]),
        ("u16", 2, vec![1, 2]),
        ("i16", 3, vec![0xfe, 0xff]),
        ("i32", 5, vec![0xfd, 0xff, 0xff, 0xff]),
        ("f32", 6, 1.5f32.to_le_bytes().into()),
        ("bool", 7, vec![1]),
        ("texts", 9, array(8, 2, &[string("a"), string("bc")].concat())),
        ("nested", 9, array(9, 1, &array(0, 3, &[1, 2, 3]))),
        ("u64", 10, u64::MAX.to_le_bytes().into()),
        ("i64", 11, (-4i64).to_le_bytes().into()),
        ("f64", 12, 2.5f64.to_le_bytes().into()),
    ];
    let file = Gguf::from_bytes(writer.bytes()).unwrap();
    let expected = [
        ("u8", Value::Unsigned(200)),
        ("i8", Value::Signed(-1)),
        ("u16", Value::Unsigned(513)),
        ("i16", Value::Signed(-2)),
        ("i32", Value::Signed(-3)),
        ("f32", Value::Float(1.5)),
        ("bool", Value::Bool(true)),
        ("texts", Value::Array(2)),
        ("nested", Value::Array(1)),
        ("u64", Value::Unsigned(u64::MAX)),
        ("i64", Value::Signed(-4)),
        ("f64", Value::Float(2.5)),
    ];
    for (key, value) in expected {
        assert_eq!(file.metadata(key), Some(&value), "{key}");
    }
    assert_eq!(file.data("two").unwrap().len(), 34);
}

#[test]
fn a_tensor_may_have_no_rows() {
    let mut writer = valid();
    writer.tensors.push(("none", vec![32, 0, 5], Q8_0, 96));
    let file = Gguf::from_bytes(writer.bytes()).unwrap();
    assert_eq!(file.data("none"), Some(&[][..]));
}

#[test]
fn the_alignment_is_the_files() {
    let mut writer = valid();
    writer.values.push(("general.alignment", 4, 8u32.to_le_bytes().into()));
    writer.tensors[1].3 = 40;
    writer.data = 74;
    assert!(Gguf::from_bytes(writer.bytes()).is_ok());
    for wrong in [0u32, 24] {
        let bytes = wrong.to_le_bytes().to_vec();
        let what = refused(|w| w.values.push(("general.alignment", 4, bytes)));
        assert_eq!(what, "general.alignment");
    }
    assert_eq!(refused(|w| w.values.push(("general.alignment", 7, vec![1]))), "general.alignment");
}

#[test]
fn a_wrong_head_is_named() {
    assert_eq!(refused(|w| w.magic = *b"GGML"), "magic");
    for version in [0, 1, 4, 3u32.swap_bytes()] {
        assert_eq!(refused(|w| w.version = version), "version");
    }
    let error = Gguf::from_bytes(Writer { version: 3u32.swap_bytes(), ..valid() }.bytes()).unwrap_err();
    assert!(error.to_string().contains("big endian"), "{error}");
}

#[test]
fn wrong_metadata_is_named() {
    assert_eq!(refused(|w| w.values[0].1 = 13), "a.number");
    assert_eq!(refused(|w| w.values[1].2 = u64::MAX.to_le_bytes().into()), "a.text");
    assert_eq!(refused(|w| w.values[1].0 = "a.number"), "a.number");
    assert_eq!(refused(|w| w.values[1] = ("list", 9, array(10, u64::MAX / 4, &[]))), "list");
    assert_eq!(refused(|w| w.values[1] = ("list", 9, array(99, 1, &[]))), "list");
    let mut deep = array(0, 0, &[]);
    (0..10).for_each(|_| deep = array(9, 1, &deep));
    assert_eq!(refused(|w| w.values[1] = ("deep", 9, deep)), "deep");
    let not_text = [&2u64.to_le_bytes()[..], &[0xff, 0xfe]].concat();
    assert_eq!(refused(|w| w.values[1].2 = not_text), "a.text");
}

#[test]
fn wrong_tensors_are_named() {
    assert_eq!(refused(|w| w.tensors[1].0 = "one"), "tensor one");
    assert_eq!(refused(|w| w.tensors[0].1 = vec![]), "dimensions of one");
    assert_eq!(refused(|w| w.tensors[0].1 = vec![1; 5]), "dimensions of one");
    assert_eq!(refused(|w| w.tensors[0].2 = 4), "type of one");
    assert_eq!(refused(|w| w.tensors[1].1[0] = 31), "row length of two");
    assert_eq!(refused(|w| w.tensors[0].1 = vec![1 << 32, 1 << 32]), "size of one");
    assert_eq!(refused(|w| w.tensors[0].1 = vec![u64::MAX, 1]), "size of one");
    assert_eq!(refused(|w| w.tensors[1].3 = 33), "offset of two");
    assert_eq!(refused(|w| w.tensors[1].3 = 64), "tensor two");
    assert_eq!(refused(|w| w.tensors[1].3 = u64::MAX - 31), "tensor two");
    assert_eq!(refused(|w| w.tensors[0].1[1] = 3), "tensor two"); // 48 bytes: into the other one
    assert_eq!(refused(|w| w.tensors[1].3 = 0), "tensor two");
    assert_eq!(refused(|w| w.data = 65), "tensor two");
}

#[test]
fn every_cut_is_an_error() {
    let bytes = valid().bytes();
    assert!(Gguf::from_bytes(bytes.clone()).is_ok());
    for n in 0..bytes.len() {
        let error = Gguf::from_bytes(bytes[..n].to_vec()).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{n}: {error}");
    }
}

#[test]
fn a_file_that_is_none_is_named() {
    for path in ["no/such/file.gguf", env!("CARGO_MANIFEST_DIR")] {
        let error = Gguf::open(path).unwrap_err();
        assert!(matches!(&error, Error::Invalid { what, .. } if what.contains(path)), "{error}");
    }
    let empty = std::env::temp_dir().join(format!("samebits-empty-{}.gguf", std::process::id()));
    std::fs::write(&empty, []).unwrap();
    let error = Gguf::open(&empty);
    std::fs::remove_file(&empty).unwrap();
    assert!(matches!(error, Err(Error::Invalid { .. })));
}

#[test]
fn a_mapped_file_is_the_same_as_its_bytes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/experts-mixed.gguf");
    let (mapped, owned) =
        (Gguf::open(path).unwrap(), Gguf::from_bytes(std::fs::read(path).unwrap()).unwrap());
    assert_eq!(mapped.tensors(), owned.tensors());
    assert_eq!(mapped.tensors().len(), 27);
    assert!(mapped.tensors().iter().all(|t| mapped.data(&t.name) == owned.data(&t.name)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000_000))]

    /// Whatever bytes are changed: an error, or tensors that lie within the file and apart from each other.
    #[test]
    fn changed_bytes_never_lead_outside(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in 0usize..64,
    ) {
        let mut bytes = valid().bytes();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        bytes.truncate(bytes.len() - cut.saturating_sub(48));
        let whole = bytes.len();
        match Gguf::from_bytes(bytes) {
            Ok(file) => {
                let lengths: Vec<usize> =
                    file.tensors().iter().map(|t| file.data(&t.name).expect("its own tensor").len()).collect();
                prop_assert!(lengths.iter().sum::<usize>() < whole);
            }
            Err(error) => prop_assert!(matches!(error, Error::Invalid { .. }), "{}", error),
        }
    }
}
