//! Whether this process is one of several that something has started together, told from its environment.

/// A process among those that were started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// What has started them.
    pub by: &'static str,
    /// Which one this is, from 0.
    pub rank: usize,
    /// How many there are; at least 2.
    pub size: usize,
}

/// What starts processes, and how it tells each of its place: (launcher, variable of the rank, of their number).
///
/// Slurm gives `SLURM_NTASKS` to a batch script too, which is one process; those of a step are set by `srun` alone.
const LAUNCHERS: [(&str, &str, &str); 4] = [
    (
        "mpirun of Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
    ),
    ("mpiexec", "PMI_RANK", "PMI_SIZE"),
    ("mpiexec", "MPI_RANKID", "MPI_NRANKS"),
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
];

/// The place of this process; `None` if it is alone.
pub fn launched() -> Option<Launched> {
    launched_by(|name| std::env::var(name).ok())
}

fn launched_by(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
    let number = |name: &str| variable(name)?.parse().ok();
    LAUNCHERS.iter().find_map(|&(by, rank, size)| {
        let (rank, size) = (number(rank)?, number(size)?);
        (size > 1).then_some(Launched { by, rank, size })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Option<(usize, usize)> {
        let given = |name: &str| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        launched_by(given).map(|it| (it.rank, it.size))
    }

    #[test]
    fn each_launcher_tells_the_place_in_its_own_words() {
        assert_eq!(of(&[]), None);
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("PMIX_RANK", "2"),
        ];
        assert_eq!(of(&open_mpi), Some((2, 4)));
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]), Some((0, 2)));
    }

    #[test]
    fn one_process_is_alone() {
        assert_eq!(of(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), None);
    }

    #[test]
    fn a_batch_script_of_slurm_is_no_step() {
        let script = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(of(&script), None);
        let step = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_STEP_NUM_TASKS", "4"),
        ];
        assert_eq!(of(&step), Some((3, 4)));
    }
}
