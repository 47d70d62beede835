//! Fuzzes values of `deviceUsage` and slot ids, which another agent or a user may have written.
#![no_main]

use leafhost_core::names::is_node_name;
use leafhost_core::slot::{DeviceUsage, slot_id, slot_number};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match text.parse::<DeviceUsage>() {
        Ok(usage) => {
            assert_eq!(usage.to_string(), text, "written as it was read");
            assert_eq!(usage.node().is_none(), text.is_empty());
            assert!(usage.node().is_none_or(is_node_name));
            assert!(text.len() <= "C::".len() + 2 * 253);
            assert!(!text.contains(|c: char| c.is_control() || c.is_whitespace()));
        }
        Err(error) => {
            assert!(!is_node_name(text), "a node's name is a value");
            assert!(!error.to_string().contains(char::is_control));
        }
    }
    let (instance, id) = text.split_once(' ').unwrap_or(("a-1", text));
    if let Some(number) = slot_number(instance, id) {
        assert_eq!(slot_id(instance, number), id, "one spelling a slot");
    }
    let number = data.iter().fold(0_u32, |n, byte| {
        n.wrapping_mul(257).wrapping_add(u32::from(*byte))
    });
    assert_eq!(slot_number(text, &slot_id(text, number)), Some(number));
});
