package io.ds;

/**
 * How a {@link FileIo} reads and writes.
 *
 * @param blockSize bytes of a request to the system, as it was given
 * @param alignment what offset, length and address should be multiples of
 * @param queueDepth requests under way, of each thread
 * @param intraOpParallelism threads of each direction
 * @param singleSubmit a system call for each request
 * @param overlapEvents a request that ends makes room for the next
 * @param validate what was moved is compared with what the file holds
 * @param checksum what is read is checked by what was written
 * @param backend what was chosen
 */
public record IoInfo(
    long blockSize,
    long alignment,
    int queueDepth,
    int intraOpParallelism,
    boolean singleSubmit,
    boolean overlapEvents,
    boolean validate,
    boolean checksum,
    IoBackend backend) {
  static IoInfo of(ds_io_info from) {
    return new IoInfo(
        from.getBlock_size(),
        from.getAlignment(),
        from.getQueue_depth(),
        from.getIntra_op_parallelism(),
        from.getSingle_submit(),
        from.getOverlap_events(),
        from.getValidate(),
        from.getChecksum(),
        IoBackend.of(from.getBackend()));
  }
}
