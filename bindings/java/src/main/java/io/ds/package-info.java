/**
 * Trains language models: the Java interface of libds.
 *
 * <p>An {@link io.ds.Engine} trains a {@link io.ds.Model} on a {@link io.ds.Dataset}, or with gradients that the program computes
 * itself. A {@link io.ds.Generator} runs a model. Configurations and reports are JSON text ({@link io.ds.Json} reads and writes
 * it), small results are records, and what fails throws a {@link io.ds.DsException} with the library's message.
 */
package io.ds;
