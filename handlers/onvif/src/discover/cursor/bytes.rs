//! Encodes numbers as LEB128 and texts as length and bytes.

/// Bytes written so far.
#[derive(Debug, Default)]
pub(super) struct Writer(pub Vec<u8>);

/// Bytes still to be read.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Writer {
    pub fn number(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                self.0.push(low & 0x7f);
                return;
            }
            self.0.push(low | 0x80);
        }
    }

    pub fn count(&mut self, count: usize) {
        self.number(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}

impl Reader<'_> {
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << (place * 7);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_back() {
        for number in [0, 1, 127, 128, 300, u64::MAX - 1, u64::MAX] {
            let mut writer = Writer::default();
            writer.number(number);
            assert_eq!(Reader(&writer.0).number(), Some(number));
        }
    }

    #[test]
    fn invalid_bytes_are_refused() {
        assert_eq!(Reader(&[0x80; 11]).number(), None);
        assert_eq!(Reader(&[2, b'a']).text(), None);
        assert_eq!(Reader(&[1, 0xff]).text(), None);
        assert_eq!(Reader(&[0xff; 9]).text(), None);
    }
}
