//! What linked chips do together, each in a process of its own with an emulator of its own, against sums of the host's.
//!
//! A test starts this binary once more for each chip, with [`RANK`] set, and compares what they print.

use std::env;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use half::bf16;
use tt_tpu::{Collective, Links, Options, TpuDevice, TpuStorage};

const RANK: &str = "TT_LINKS_RANK";
const SIZE: &str = "TT_LINKS_SIZE";
const ADDRESS: &str = "TT_LINKS_ADDRESS";
const CHIP: &str = "what_a_chip_of_those_does";

/// Not a multiple of anything, and some more than one load of the kernels.
const SHARES: [usize; 3] = [1, 613, 70_001];

fn number(name: &str) -> Option<usize> {
    env::var(name).ok()?.parse().ok()
}

fn has_emulator() -> bool {
    let is_there = tt_tpu::sdk::Sdk::find(Some(tt_tpu::Chip::Bm1690)).is_ok();
    assert!(is_there || env::var_os("CI").is_none(), "no emulator");
    if !is_there {
        eprintln!("SKIPPED, NOTHING WAS TESTED: no emulator of a BM1690");
    }
    is_there
}

/// What each of `size` chips says, by rank.
fn run(size: usize) -> Vec<String> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, 1 + high, middle, low);
    let start = |rank: usize| {
        Command::new(env::current_exe().unwrap())
            .args([CHIP, "--exact", "--ignored", "--nocapture"])
            .env(RANK, rank.to_string())
            .env(SIZE, size.to_string())
            .env(ADDRESS, address.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let chips: Vec<Child> = (0..size).map(start).collect();
    let begun = Instant::now();
    let mut chips = Chips(chips);
    while chips
        .0
        .iter_mut()
        .any(|it| it.try_wait().unwrap().is_none())
    {
        assert!(begun.elapsed() < Duration::from_secs(300), "they hang");
        std::thread::sleep(Duration::from_millis(20));
    }
    let outputs = std::mem::take(&mut chips.0).into_iter();
    let outputs = outputs.map(|it| it.wait_with_output().unwrap());
    let said = outputs.map(|it| {
        let text = String::from_utf8_lossy(&it.stdout).into_owned();
        assert!(it.status.success(), "{text}");
        text
    });
    said.collect()
}

/// Ended when a test gives up.
struct Chips(Vec<Child>);

impl Drop for Chips {
    fn drop(&mut self) {
        for chip in &mut self.0 {
            let _ = chip.kill();
            let _ = chip.wait();
        }
    }
}

fn agree(size: usize) {
    if !has_emulator() {
        return;
    }
    let said = run(size);
    let sums = |text: &String| {
        let found = text
            .lines()
            .filter_map(|it| it.split_once("bits of the sums: "));
        found.map(|(_, bits)| bits.to_owned()).collect::<Vec<_>>()
    };
    let first = sums(&said[0]);
    assert_eq!(first.len(), SHARES.len(), "{}", said[0]);
    for other in &said[1..] {
        assert_eq!(sums(other), first, "other bits on another chip");
    }
}

#[test]
fn two_chips_put_together_and_sum_what_they_have() {
    agree(2);
}

#[test]
#[ignore = "for cargo xtask check --full"]
fn four_and_eight_chips_do_too() {
    agree(4);
    agree(8);
}

#[test]
fn three_chips_are_refused_before_their_emulators_end() {
    let told = Links::check(3).unwrap_err().to_string();
    assert!(told.contains("2, 4 or 8 chips, and not for 3"), "{told}");
}

/// What rank `rank` gives: numbers of both signs, whose sums round.
fn given(rank: usize, len: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + i / 613 + rank * 331) % 1013) as f32 / 500.3 - 1.0;
    (0..len).map(number).collect()
}

#[test]
#[ignore = "a part of the others"]
fn what_a_chip_of_those_does() {
    let (Some(rank), Some(size)) = (number(RANK), number(SIZE)) else {
        return;
    };
    let links = Links {
        rank,
        size,
        address: env::var(ADDRESS).unwrap().parse().unwrap(),
    };
    let options = Options {
        cores: Some(1),
        links: Some(links),
        ..Options::default()
    };
    let tpu = TpuDevice::open(&options).unwrap();
    for share in SHARES {
        f32_collectives(tpu, links, share);
        bf16_gathers(tpu, links, share);
    }
    in_a_row(tpu, links);
    let odd = tpu.received(Collective::ReduceScatter, size + 1);
    assert!(
        odd.unwrap_err()
            .to_string()
            .contains("not shared out evenly")
    );
}

fn collect(tpu: TpuDevice, collective: Collective, x: &CpuStorage, len: usize) -> CpuStorage {
    let dtype = x.dtype();
    let x = TpuStorage::upload(tpu, x).unwrap();
    let received = tpu.received(collective, len).unwrap();
    let mut y = tpu.alloc(dtype, received).unwrap();
    tpu.collect(collective, (&x, &Layout::contiguous(len)), &mut y)
        .unwrap();
    y.to_cpu_storage().unwrap()
}

fn f32_collectives(tpu: TpuDevice, Links { rank, size, .. }: Links, share: usize) {
    let len = share * size;
    let all: Vec<Vec<f32>> = (0..size).map(|rank| given(rank, len)).collect();
    let own = CpuStorage::F32(all[rank].clone());
    let sum = |i: usize| all.iter().map(|it| f64::from(it[i])).sum::<f64>();
    let is_sum = |i: usize, found: f32| {
        let most = size as f64 * f64::from(f32::EPSILON) * size as f64;
        assert!(
            (f64::from(found) - sum(i)).abs() <= most,
            "{i}: {found}, {}",
            sum(i)
        );
    };
    let collect = |collective, x: &CpuStorage, len| {
        let found = collect(tpu, collective, x, len);
        found.as_slice::<f32>().unwrap().to_vec()
    };

    let found = collect(Collective::AllReduce, &own, len);
    found.iter().enumerate().for_each(|(i, &it)| is_sum(i, it));
    assert_eq!(
        collect(Collective::AllReduce, &own, len),
        found,
        "other bits"
    );
    let bits = found.iter().fold(0u64, |hash, it| {
        (hash ^ u64::from(it.to_bits())).wrapping_mul(0x100_0000_01b3)
    });
    println!("\nbits of the sums: {bits:x}");

    let part = collect(Collective::ReduceScatter, &own, len);
    assert_eq!(part.len(), share);
    let places = (rank * share..).zip(&part);
    places.for_each(|(i, &it)| is_sum(i, it));

    let gathered = collect(Collective::AllGather, &own, len);
    assert_eq!(gathered, all.concat());
    let root = size - 1;
    assert_eq!(
        collect(Collective::Broadcast { root }, &own, len),
        all[root]
    );
}

/// None is waited for, and what one has read is written over at once: a chip that is behind must not see that.
fn in_a_row(tpu: TpuDevice, Links { rank, size, .. }: Links) {
    let len = SHARES[2];
    let upload = |value: f32| TpuStorage::upload(tpu, &CpuStorage::F32(vec![value; len])).unwrap();
    let mut x = upload(rank as f32 + 1.0);
    for _ in 0..10 {
        let mut all = tpu.alloc(DType::F32, len * size).unwrap();
        let of_one = Layout::contiguous(len);
        let gathered = tpu.collect(Collective::AllGather, (&x, &of_one), &mut all);
        gathered.unwrap();
        drop(x);
        let over = upload(-1.0);
        x = tpu.alloc(DType::F32, len).unwrap();
        let of_all = Layout::contiguous(len * size);
        let summed = tpu.collect(Collective::ReduceScatter, (&all, &of_all), &mut x);
        summed.unwrap();
        drop((all, over));
    }
    let found = x.to_cpu_storage().unwrap();
    let expected = (rank as f32 + 1.0) * (size as f32).powi(10);
    assert_eq!(found.as_slice::<f32>().unwrap(), vec![expected; len]);
}

fn bf16_gathers(tpu: TpuDevice, Links { rank, size, .. }: Links, share: usize) {
    let of = |rank| -> Vec<bf16> {
        let numbers = given(rank, share).into_iter();
        numbers.map(bf16::from_f32).collect()
    };
    let own = CpuStorage::BF16(of(rank));
    let found = collect(tpu, Collective::AllGather, &own, share);
    assert_eq!(found.dtype(), DType::BF16);
    let all: Vec<bf16> = (0..size).flat_map(of).collect();
    assert_eq!(found.as_slice::<bf16>().unwrap(), all);
}
