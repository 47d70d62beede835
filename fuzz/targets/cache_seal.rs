//! Fuzzes the cache of native code as an attacker who writes any bytes into it and has seen valid files.
#![no_main]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use leafhost_wasm::fuzzing::Seal;
use libfuzzer_sys::fuzz_target;

const NAME: &str = "ours.native";

fuzz_target!(|data: &[u8]| {
    // Each input has its own key, because libFuzzer observes comparisons and a seal that it has seen would be valid again.
    let mut key = DefaultHasher::new();
    data.hash(&mut key);
    let seal = Seal::new(
        [key.finish().to_le_bytes(); 8]
            .concat()
            .try_into()
            .expect("64 bytes"),
    );
    assert_eq!(seal.verify(NAME, data), None, "nobody guesses a seal");
    let Some(([change, at, with], code)) = data.split_first_chunk::<3>() else {
        return;
    };
    let good = [&seal.head(NAME, code)[..], code].concat();
    assert_eq!(seal.verify(NAME, &good), Some(code));
    let other = Seal::new([8; 64]);
    assert_eq!(other.verify(NAME, &good), None, "another agent's");
    // The seal separates the end of the name from the start of the code.
    for name in ["", "ours", "ours.nativ", "ours.native\0", "other.native"] {
        assert_eq!(seal.verify(name, &good), None, "under another name");
    }
    let mut changed = good.clone();
    let at = usize::from(*at) * good.len() / 256;
    match change % 5 {
        0 => changed[at] ^= with,
        1 => changed.truncate(at),
        2 => changed.insert(at, *with),
        3 => drop(changed.remove(at)),
        _ => changed.splice(..0, data.iter().copied()).for_each(drop),
    }
    let believed = seal.verify(NAME, &changed);
    assert_eq!(believed.is_some(), changed == good, "only what was sealed");
});
