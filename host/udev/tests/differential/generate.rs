//! Random rules: terms about real devices, with values turned into patterns that match, nearly match, or do not; and rules with globs of ports,
//! the most frequent ones in the field.

use leafhost_udev::{Field, Rule, Term};

use crate::sample::{Sample, Samples};

const FIELDS: [Field; 12] = [
    Field::Attr,
    Field::Attrs,
    Field::Devpath,
    Field::Driver,
    Field::Drivers,
    Field::Env,
    Field::Kernel,
    Field::Kernels,
    Field::Subsystem,
    Field::Subsystems,
    Field::Tag,
    Field::Tags,
];

/// Generates the same rules for the same seed and devices.
pub struct Generator<'a> {
    random: Random,
    samples: &'a Samples,
    /// Indexes of the devices that are a USB device or below one.
    on_ports: Vec<usize>,
}

impl<'a> Generator<'a> {
    pub fn new(seed: u64, samples: &'a Samples) -> Self {
        let is_on_port = |device: &usize| {
            let chain = samples.chain(*device);
            chain.iter().any(|sample| is_port(&sample.kernel))
        };
        Self {
            random: Random(seed),
            samples,
            on_ports: (0..samples.all.len()).filter(is_on_port).collect(),
        }
    }

    /// Generates a rule of one to four terms, most of them about one device and one of its ancestors.
    pub fn rule(&mut self) -> Rule {
        let chain = self
            .samples
            .chain(self.random.below(self.samples.all.len()));
        let above = chain[self.random.below(chain.len())];
        let count = 1 + self.random.below(4);
        let terms = (0..count).map(|_| self.term(&chain, above)).collect();
        Rule::new(terms).unwrap_or_else(|error| panic!("a generated rule is none: {error}"))
    }

    /// Generates a rule that begins with a glob of ports, such as `KERNELS=="1-1.*"`; most of these rules have one or two more terms.
    pub fn rule_with_ports(&mut self) -> Rule {
        let chain = self.samples.chain(*self.random.pick(&self.on_ports));
        let ports = chain.iter().copied();
        let ports: Vec<&Sample> = ports.filter(|sample| is_port(&sample.kernel)).collect();
        let above = *self.random.pick(&ports);
        let mut terms = vec![self.port(above)];
        for _ in 0..self.random.below(3) {
            terms.push(self.term(&chain, above));
        }
        Rule::new(terms).unwrap_or_else(|error| panic!("a generated rule is none: {error}"))
    }

    /// Generates a term with a glob of ports.
    fn port(&mut self, about: &Sample) -> Term {
        let devpath = about.attributes.get("devpath");
        let (field, key, name) = match devpath {
            Some(devpath) if self.random.percent(20) => {
                (Field::Attrs, Some("devpath".to_owned()), devpath)
            }
            _ if self.random.percent(15) => (Field::Kernel, None, &about.kernel),
            _ => (Field::Kernels, None, &about.kernel),
        };
        Term {
            field,
            key,
            negated: self.random.percent(15),
            value: self.ports(name),
        }
    }

    /// Generates a glob from a name such as `1-3.1:1.0`, or from `3.1`, which has no bus.
    fn ports(&mut self, name: &str) -> String {
        let device = name.split(':').next().unwrap_or(name);
        let hub = device.rsplit_once('.').map_or(device, |(hub, _)| hub);
        match self.random.below(10) {
            0 => name.to_owned(),
            1 => format!("{device}.*"),
            2 => format!("{hub}.*"),
            3 => format!("{hub}.[1-3]"),
            4 => format!("{hub}.?:1.0"),
            5 => format!("{device}:*"),
            6 => format!("{device}:1.*"),
            7 => format!("{hub}*"),
            8 => format!("?{}*", device.split_at(1).1),
            _ => format!("{name}|{hub}.*"),
        }
    }

    fn term(&mut self, chain: &[&'a Sample], above: &'a Sample) -> Term {
        let field = *self.random.pick(&FIELDS);
        let about = match field.is_plural() {
            false => chain[0],
            true if self.random.percent(75) => above,
            true => *self.random.pick(chain),
        };
        let other = &self.samples.all[self.random.below(self.samples.all.len())];
        let key = field.has_key().then(|| self.key(field, about, other));
        let about = if self.random.percent(85) {
            about
        } else {
            other
        };
        let text = text(&mut self.random, field, key.as_deref(), about);
        Term {
            field,
            key,
            negated: self.random.percent(25),
            value: self.value(&text),
        }
    }

    fn key(&mut self, field: Field, about: &Sample, other: &Sample) -> String {
        let of = if self.random.percent(85) {
            about
        } else {
            other
        };
        let keys: Vec<&String> = match field {
            Field::Env => of.properties.keys().collect(),
            _ => of.attributes.keys().collect(),
        };
        // The content of these may change while a rule is tested.
        let keys: Vec<&String> = keys
            .into_iter()
            .filter(|key| !["uevent", "../uevent", "device/uevent"].contains(&key.as_str()))
            .collect();
        if keys.is_empty() || self.random.percent(4) {
            return "none".to_owned();
        }
        (*self.random.pick(&keys)).clone()
    }

    /// Generates a pattern about a text.
    fn value(&mut self, text: &str) -> String {
        let mut value = match self.random.below(20) {
            0 => (*self
                .random
                .pick(&["", "*", "?*", "?", "*?*", "|", "[!a]*", "[", "*|"]))
            .to_owned(),
            1..7 => text.to_owned(),
            _ => self.bent(text),
        };
        if self.random.percent(12) {
            let other = &self.samples.all[self.random.below(self.samples.all.len())];
            let other = (*self
                .random
                .pick(&["", "x*", "[0-9]", &other.kernel, &other.subsystem]))
            .to_owned();
            value = if self.random.percent(50) {
                format!("{value}|{other}")
            } else {
                format!("{other}|{value}")
            };
        }
        match self.random.below(25) {
            0 => value.push(' '),
            1 => value.push('?'),
            2 => value = value.to_uppercase(),
            3 => value = value.trim_end().to_owned(),
            _ => {}
        }
        written(&value)
    }

    /// Replaces parts of the text by stars, sets and the like.
    fn bent(&mut self, text: &str) -> String {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        for _ in 0..=self.random.below(3) {
            let at = self.random.below(parts.len() + 1);
            let end = at + self.random.below(parts.len() + 1 - at);
            match self.random.below(9) {
                0 => parts.truncate(at),
                1 => drop(parts.drain(..at)),
                2 => drop(parts.splice(at..end, [])),
                3 => {}
                _ => {
                    if let Some(part) = parts.get_mut(at) {
                        *part = self.in_place_of(part);
                    }
                    continue;
                }
            }
            let at = at.min(parts.len());
            parts.insert(at, "*".to_owned());
        }
        parts.concat()
    }

    fn in_place_of(&mut self, part: &str) -> String {
        let near = |by: i8| {
            let c = part
                .bytes()
                .last()
                .unwrap_or(b'a')
                .saturating_add_signed(by);
            char::from(c.clamp(b'!', b'~'))
        };
        let (low, high) = (near(-2), near(2));
        match self.random.below(12) {
            0 | 1 => "?".to_owned(),
            2 => "?".repeat(part.len()),
            3 => format!("[{part}]"),
            4 => format!("[!{part}]"),
            5 => format!("[{low}-{high}]"),
            6 => format!("[^{low}-{high}]"),
            7 => format!("[x{part}-]"),
            8 => (*self
                .random
                .pick(&["[[:digit:]]", "[[:alpha:]_]", "[![:punct:]]", "[]a-z]"]))
            .to_owned(),
            9 => format!("\\{part}"),
            10 => format!("{part}["),
            _ => high.to_string(),
        }
    }
}

/// Returns true for the kernel's name of a USB device or interface, such as `1-3.1:1.0`.
fn is_port(kernel: &str) -> bool {
    let begins_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let parts = kernel.split_once('-');
    parts.is_some_and(|(bus, port)| begins_with_digit(bus) && begins_with_digit(port))
}

/// Returns the value of the field on a device.
fn text(random: &mut Random, field: Field, key: Option<&str>, about: &Sample) -> String {
    let key = key.unwrap_or_default();
    let text = match field {
        Field::Attr | Field::Attrs => about.attributes.get(key),
        Field::Env => about.properties.get(key),
        Field::Devpath => Some(&about.devpath),
        Field::Driver | Field::Drivers => Some(&about.driver),
        Field::Kernel | Field::Kernels => Some(&about.kernel),
        Field::Subsystem | Field::Subsystems => Some(&about.subsystem),
        Field::Tag | Field::Tags if about.tags.is_empty() => None,
        Field::Tag | Field::Tags => Some(random.pick(&about.tags)),
    };
    text.cloned().unwrap_or_default()
}

/// Makes a value fit for a rules file: no control characters, and nothing that would escape the closing quote.
fn written(value: &str) -> String {
    let mut value: String = value
        .chars()
        .map(|c| {
            if c.is_control() || c == '\u{fffd}' {
                '?'
            } else {
                c
            }
        })
        .take(300)
        .collect();
    while value.contains("\\\"") {
        value = value.replace("\\\"", "\"");
    }
    value.trim_end_matches('\\').to_owned()
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % end).unwrap_or(0)
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.below(from.len())]
    }
}
