package io.ds;

/**
 * A group of processes, or of threads that stand for processes. Every process calls the same collectives in the same order, with
 * tensors of the same type, packed, in host memory; a wrong call, a lost process or a passed deadline is an exception that names
 * the process.
 */
public final class Comm extends NativeObject {
  private Comm(long handle) {
    super(handle, Native::end_ds_comm);
  }

  /**
   * Joins a group; waits until all have joined.
   *
   * @param rank this process, in [0, worldSize)
   * @param worldSize number of processes
   * @param configJson communication options; null for the defaults
   * @param store where the processes meet; null: a port of rank 0
   * @return a new member
   * @throws DsException.Comm names who did not come
   */
  public static Comm create(int rank, int worldSize, String configJson, KeyValueStore store) {
    return new Comm(Marshal.handle(out -> Native.ds_comm_create(rank, worldSize, configJson, store, out)));
  }

  /**
   * Joins the group that the launcher (ds launch, torchrun, mpirun, srun) put into the environment, else one of this process
   * alone.
   *
   * @param configJson communication options; null for the defaults
   * @return a new member
   */
  public static Comm ofEnvironment(String configJson) {
    return create(-1, -1, configJson, null);
  }

  /**
   * Ranks and sizes.
   *
   * @return what this process is in the group
   */
  public CommInfo info() {
    try (ds_comm_info info = new ds_comm_info()) {
      Native.ds_comm_describe(this, info);
      return CommInfo.of(info);
    }
  }

  /**
   * Combines a tensor of all processes, in place.
   *
   * @param tensor the same shape everywhere
   * @param op how
   */
  public void allReduce(Tensor tensor, ReduceOp op) {
    Native.ds_comm_all_reduce(this, tensor, op.code);
  }

  /**
   * Combines tensors of all processes with one collective, in place.
   *
   * @param op how
   * @param tensors one or more of one type
   */
  public void allReduce(ReduceOp op, Tensor... tensors) {
    Native.ds_comm_all_reduce_coalesced(this, tensors, tensors.length, op.code);
  }

  /**
   * Combines pieces; that of this process lands in the output.
   *
   * @param output one piece
   * @param input one piece per process, one after another
   * @param op how
   */
  public void reduceScatter(Tensor output, Tensor input, ReduceOp op) {
    Native.ds_comm_reduce_scatter(this, output, input, op.code);
  }

  /**
   * {@link #reduceScatter(Tensor, Tensor, ReduceOp)} of many tensors with one collective.
   *
   * @param outputs one piece each
   * @param inputs as many, one piece per process each
   * @param op how
   */
  public void reduceScatter(Tensor[] outputs, Tensor[] inputs, ReduceOp op) {
    sameLength(outputs, inputs);
    Native.ds_comm_reduce_scatter_coalesced(this, outputs, inputs, inputs.length, op.code);
  }

  /**
   * Gathers the input of every process, in rank order, in the output.
   *
   * @param output one piece per process
   * @param input one piece
   */
  public void allGather(Tensor output, Tensor input) {
    Native.ds_comm_all_gather(this, output, input);
  }

  /**
   * {@link #allGather(Tensor, Tensor)} of many tensors with one collective.
   *
   * @param outputs one piece per process each
   * @param inputs as many, one piece each
   */
  public void allGather(Tensor[] outputs, Tensor[] inputs) {
    sameLength(outputs, inputs);
    Native.ds_comm_all_gather_coalesced(this, outputs, inputs, inputs.length);
  }

  private static void sameLength(Tensor[] outputs, Tensor[] inputs) {
    if (outputs.length != inputs.length) {
      throw new IllegalArgumentException(outputs.length + " outputs, but " + inputs.length + " inputs");
    }
  }

  /**
   * Sends piece j of the input of process i to piece i of the output of process j.
   *
   * @param output one piece per process
   * @param input one piece per process
   */
  public void allToAll(Tensor output, Tensor input) {
    Native.ds_comm_all_to_all(this, output, input);
  }

  /**
   * Sends the tensor of one process to that of every process.
   *
   * @param tensor the same shape everywhere
   * @param root whose values count
   */
  public void broadcast(Tensor tensor, int root) {
    Native.ds_comm_broadcast(this, tensor, root);
  }

  /**
   * Makes new groups of the processes that give the same color.
   *
   * @param color negative for a process that joins none
   * @param key orders the group, then the rank does
   * @return the new group; null for a negative color
   */
  public Comm split(int color, int key) {
    long handle = Marshal.handle(out -> Native.ds_comm_split(this, color, key, out));
    return handle == 0 ? null : new Comm(handle);
  }

  /**
   * For a process that runs out of work before others: answers the collectives that they still call, with zeros to sums, until
   * every process has called it.
   */
  public void join() {
    Native.ds_comm_join(this);
  }

  /**
   * Starts a collective and returns; it goes on beside the program.
   *
   * @param collective what to do
   * @return to be waited for, and closed
   */
  public Work start(Collective collective) {
    Collective c = collective;
    return new Work(Marshal.handle(out -> Native.start_collective(this, c.kind.code, c.op.code, c.output, c.input, c.root, c.tag,
        c.outputCounts, c.inputCounts, c.label, c.timeoutMs, c.averageOverParticipants, out)));
  }

  /**
   * Makes a tensor of zeros whose memory the processes of a host share: collectives read and write it where it lies. Every
   * process calls it.
   *
   * @param type of its elements
   * @param shape the same in every process
   * @return a new tensor
   */
  public Tensor sharedTensor(DType type, long... shape) {
    return Marshal.tensor(out -> Native.ds_comm_shared_tensor(this, type.code, shape, shape.length, out));
  }

  /**
   * What the group is and what it has sent.
   *
   * @return JSON
   */
  public String report() {
    return Marshal.text(out -> Native.ds_comm_report(this, out));
  }

  /** Waits until every process has called it. */
  public void barrier() {
    Native.ds_comm_barrier(this);
  }

  /** Ends the group together: waits until every process has called it; afterwards only {@link #close} is allowed. */
  public void finish() {
    Native.ds_comm_finalize(this);
  }

  /** Makes every pending and later operation of the group fail with {@link DsException.Aborted}, here and elsewhere. Any thread. */
  public void abort() {
    Native.ds_comm_abort(this);
  }
}
