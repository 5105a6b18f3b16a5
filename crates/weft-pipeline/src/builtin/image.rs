//! The visualisation of images: `read` reads chunks of an image, `clip` keeps what is in view,
//! `subsample` makes it smaller, and `view` writes the result to a file.
//!
//! Images are grey PGM files (P5) of one byte for each pixel. A buffer is a chunk: the size of the
//! frame, the position and the size of the chunk in it, and its pixels by rows.

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::filter::Filter;
use crate::limits::IMAGE_SIDE_MAX;
use crate::outputs::Outputs;
use crate::parameters::Parameters;

/// Length of the six words before the pixels of a chunk.
const HEAD_LEN: usize = 24;

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rect {
    x: u32,
    y: u32,
    width: u32,
    height: u32,
}

impl Rect {
    /// Returns the common part with another one; `None` if there is none.
    fn common(&self, other: &Self) -> Option<Self> {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let right = (self.x + self.width).min(other.x + other.width);
        let bottom = (self.y + self.height).min(other.y + other.height);
        (x < right && y < bottom).then(|| Self { x, y, width: right - x, height: bottom - y })
    }

    fn pixels(&self) -> usize {
        self.width as usize * self.height as usize
    }

    /// The part of a frame that a unit views: all of it by default.
    fn view(parameters: &Parameters, width: u32, height: u32) -> Result<Self, Failure> {
        let x: u32 = parameters.get("x")?.unwrap_or(0);
        let y: u32 = parameters.get("y")?.unwrap_or(0);
        let wanted = |name: &str| parameters.get(name).map(|side| side.unwrap_or(IMAGE_SIDE_MAX));
        let outside = || Failure::filter("the view is outside of the image");
        let rect = Self {
            x,
            y,
            width: wanted("width")?.min(width.checked_sub(x).ok_or_else(outside)?),
            height: wanted("height")?.min(height.checked_sub(y).ok_or_else(outside)?),
        };
        if rect.pixels() == 0 { Err(outside()) } else { Ok(rect) }
    }
}

/// A part of a frame.
struct Chunk<'buffer> {
    /// Width and height of the frame.
    frame: [u32; 2],
    rect: Rect,
    pixels: &'buffer [u8],
}

impl<'buffer> Chunk<'buffer> {
    fn parse(buffer: &'buffer [u8]) -> Result<Self, Failure> {
        let wrong = || Failure::filter("got a buffer that is no chunk of an image");
        let (head, pixels) = buffer.split_first_chunk::<HEAD_LEN>().ok_or_else(wrong)?;
        let (words, _) = head.as_chunks::<4>();
        let word = |index: usize| u32::from_be_bytes(words[index]);
        let frame = [word(0), word(1)];
        let rect = Rect { x: word(2), y: word(3), width: word(4), height: word(5) };
        let is_within = frame.iter().all(|side| (1..=IMAGE_SIDE_MAX).contains(side))
            && rect.x.checked_add(rect.width).is_some_and(|right| right <= frame[0])
            && rect.y.checked_add(rect.height).is_some_and(|bottom| bottom <= frame[1])
            && rect.pixels() == pixels.len();
        if is_within { Ok(Self { frame, rect, pixels }) } else { Err(wrong()) }
    }

    /// The pixels of a row of the chunk.
    fn row(&self, row: u32) -> &'buffer [u8] {
        let width = self.rect.width as usize;
        &self.pixels[row as usize * width..][..width]
    }
}

/// Begins the buffer of a chunk.
fn put_head(buffer: &mut Vec<u8>, frame: [u32; 2], rect: Rect) {
    buffer.clear();
    for word in [frame[0], frame[1], rect.x, rect.y, rect.width, rect.height] {
        buffer.extend_from_slice(&word.to_be_bytes());
    }
}

/// An open image.
struct Image {
    file: File,
    width: u32,
    height: u32,
    /// Where the pixels begin.
    start: u64,
}

impl Image {
    fn open(path: &PathBuf) -> Result<Self, Failure> {
        let named = |error: std::io::Error| Failure::filter(format!("{}: {error}", path.display()));
        let wrong = || Failure::filter(format!("{}: is not a grey PGM image", path.display()));
        let file = File::open(path).map_err(named)?;
        let mut bytes = BufReader::new(&file).bytes();
        let mut start = 0;
        let mut next = || -> Result<u8, Failure> {
            start += 1;
            bytes.next().ok_or_else(wrong)?.map_err(named)
        };
        if [next()?, next()?] != *b"P5" {
            return Err(wrong());
        }
        let mut numbers = [0_u32; 3];
        for number in &mut numbers {
            let mut byte = next()?;
            while byte.is_ascii_whitespace() || byte == b'#' {
                if byte == b'#' {
                    while next()? != b'\n' {}
                }
                byte = next()?;
            }
            while byte.is_ascii_digit() {
                *number = number.saturating_mul(10).saturating_add(u32::from(byte - b'0'));
                byte = next()?;
            }
            if !byte.is_ascii_whitespace() {
                return Err(wrong());
            }
        }
        let [width, height, white] = numbers;
        let sides = 1..=IMAGE_SIDE_MAX;
        if !sides.contains(&width) || !sides.contains(&height) || !(1..256).contains(&white) {
            return Err(wrong());
        }
        Ok(Self { file, width, height, start })
    }
}

/// Reads the chunks of an image that are in view. Its copies share the chunks.
pub(super) struct Read {
    copy: usize,
    copies: usize,
    parameters: Parameters,
    buffer: Vec<u8>,
}

impl Read {
    pub(super) fn new(copy: usize, copies: usize) -> Self {
        Self { copy, copies, parameters: Parameters::default(), buffer: Vec::new() }
    }
}

impl Filter for Read {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.parameters = parameters.clone();
        Ok(())
    }

    fn produce(&mut self, out: &mut Outputs) -> Result<(), Failure> {
        let image = Image::open(&self.parameters.need("image")?)?;
        let view = Rect::view(&self.parameters, image.width, image.height)?;
        let largest = out.buffer_len().saturating_sub(HEAD_LEN).isqrt() as u32;
        let side = self.parameters.get("chunk")?.unwrap_or(largest);
        if !(1..=largest).contains(&side) {
            return Err(Failure::filter(format!(
                "chunks of {side} pixels: a buffer takes from 1 to {largest} in each direction"
            )));
        }
        let rows = image.height.div_ceil(side);
        let columns = image.width.div_ceil(side);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let rects = places.map(|(column, row)| {
            let (x, y) = (column * side, row * side);
            let (width, height) = (side.min(image.width - x), side.min(image.height - y));
            Rect { x, y, width, height }
        });
        let viewed = rects.filter(|rect| rect.common(&view).is_some());
        for rect in viewed.skip(self.copy).step_by(self.copies) {
            put_head(&mut self.buffer, [image.width, image.height], rect);
            self.buffer.resize(HEAD_LEN + rect.pixels(), 0);
            let rows = self.buffer[HEAD_LEN..].chunks_exact_mut(rect.width as usize);
            for (row, y) in rows.zip(rect.y..) {
                let at = u64::from(y) * u64::from(image.width) + u64::from(rect.x);
                let read = image.file.read_exact_at(row, image.start + at);
                read.map_err(|error| Failure::filter(format!("reading the image: {error}")))?;
            }
            out.write(&self.buffer)?;
        }
        Ok(())
    }
}

/// Keeps the part of chunks that is in view. Its frame is the view.
#[derive(Default)]
pub(super) struct Clip {
    parameters: Parameters,
    buffer: Vec<u8>,
}

impl Filter for Clip {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.parameters = parameters.clone();
        Ok(())
    }

    fn process(&mut self, buffer: &[u8], out: &mut Outputs) -> Result<(), Failure> {
        let chunk = Chunk::parse(buffer)?;
        let view = Rect::view(&self.parameters, chunk.frame[0], chunk.frame[1])?;
        let Some(part) = chunk.rect.common(&view) else { return Ok(()) };
        let moved = Rect { x: part.x - view.x, y: part.y - view.y, ..part };
        put_head(&mut self.buffer, [view.width, view.height], moved);
        let first = (part.x - chunk.rect.x) as usize;
        for row in part.y - chunk.rect.y..part.y - chunk.rect.y + part.height {
            self.buffer.extend_from_slice(&chunk.row(row)[first..first + part.width as usize]);
        }
        out.write(&self.buffer)
    }
}

/// Keeps each `step`-th pixel of each `step`-th row of the frame.
#[derive(Default)]
pub(super) struct Subsample {
    step: u32,
    buffer: Vec<u8>,
}

impl Filter for Subsample {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.step = parameters.get("step")?.unwrap_or(1);
        match self.step {
            1..=IMAGE_SIDE_MAX => Ok(()),
            _ => Err(Failure::filter(format!("step = {}: from 1 on", self.step))),
        }
    }

    fn process(&mut self, buffer: &[u8], out: &mut Outputs) -> Result<(), Failure> {
        let (step, chunk) = (self.step, Chunk::parse(buffer)?);
        let Rect { x, y, width, height } = chunk.rect;
        let (left, top) = (x.div_ceil(step), y.div_ceil(step));
        let (right, bottom) = ((x + width).div_ceil(step), (y + height).div_ceil(step));
        let rect = Rect { x: left, y: top, width: right - left, height: bottom - top };
        if rect.pixels() == 0 {
            return Ok(());
        }
        put_head(&mut self.buffer, chunk.frame.map(|side| side.div_ceil(step)), rect);
        for row in top..bottom {
            let pixels = chunk.row(row * step - y);
            let first = (left * step - x) as usize;
            self.buffer.extend(pixels[first..].iter().step_by(step as usize));
        }
        out.write(&self.buffer)
    }
}

/// Writes the frame of a unit to a file.
#[derive(Default)]
pub(super) struct View {
    output: PathBuf,
    frame: [u32; 2],
    pixels: Vec<u8>,
    /// The number of pixels that have arrived.
    arrived: usize,
}

impl Filter for View {
    fn init(&mut self, parameters: &Parameters) -> Result<(), Failure> {
        self.output = parameters.need("output")?;
        (self.frame, self.arrived) = ([0, 0], 0);
        self.pixels.clear();
        Ok(())
    }

    fn process(&mut self, buffer: &[u8], _: &mut Outputs) -> Result<(), Failure> {
        let chunk = Chunk::parse(buffer)?;
        if self.arrived == 0 {
            self.frame = chunk.frame;
            self.pixels.resize(chunk.frame[0] as usize * chunk.frame[1] as usize, 0);
        }
        if chunk.frame != self.frame {
            return Err(Failure::filter("chunks of one unit belong to different frames"));
        }
        self.arrived += chunk.pixels.len();
        let Rect { x, y, width, height } = chunk.rect;
        for row in 0..height {
            let at = (y + row) as usize * self.frame[0] as usize + x as usize;
            self.pixels[at..at + width as usize].copy_from_slice(chunk.row(row));
        }
        Ok(())
    }

    fn finalize(&mut self, _: &mut Outputs) -> Result<(), Failure> {
        let (arrived, all) = (self.arrived, self.pixels.len());
        if arrived != all || all == 0 {
            return Err(Failure::filter(format!(
                "{arrived} of {all} pixels arrived: a view with several copies has several parts"
            )));
        }
        let write = || {
            // The file gets its name when it is complete.
            let mut name = self.output.clone().into_os_string();
            name.push(".weft-part");
            let mut file = File::create(&name)?;
            write!(file, "P5\n{} {}\n255\n", self.frame[0], self.frame[1])?;
            file.write_all(&self.pixels)?;
            fs::rename(&name, &self.output)
        };
        write().map_err(|error: std::io::Error| {
            Failure::filter(format!("{}: {error}", self.output.display()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_that_are_no_chunks_are_refused() {
        let mut good = Vec::new();
        put_head(&mut good, [4, 3], Rect { x: 1, y: 1, width: 3, height: 2 });
        good.extend([0; 6]);
        assert!(Chunk::parse(&good).is_ok());
        for at in 0..6 {
            let mut wrong = good.clone();
            wrong[at * 4] = 0xff;
            assert!(Chunk::parse(&wrong).is_err(), "word {at}");
        }
        assert!(Chunk::parse(&good[..HEAD_LEN - 1]).is_err());
        assert!(Chunk::parse(&good[..HEAD_LEN + 5]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_chunk_or_refused(bytes in prop::collection::vec(0_u8..3, 0..60)) {
            if let Ok(chunk) = Chunk::parse(&bytes) {
                prop_assert_eq!(chunk.pixels.len(), bytes.len() - HEAD_LEN);
            }
        }
    }
}
