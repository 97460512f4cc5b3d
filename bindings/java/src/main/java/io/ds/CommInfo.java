package io.ds;

/**
 * What a process is in its group.
 *
 * @param rank this process, in [0, size)
 * @param size processes of the group
 * @param localRank this process among those of its host
 * @param localSize processes on its host
 * @param node its host, in [0, nodes)
 * @param nodes hosts
 */
public record CommInfo(
    int rank,
    int size,
    int localRank,
    int localSize,
    int node,
    int nodes) {
  static CommInfo of(ds_comm_info from) {
    return new CommInfo(
        from.getRank(),
        from.getSize(),
        from.getLocal_rank(),
        from.getLocal_size(),
        from.getNode(),
        from.getNodes());
  }
}
