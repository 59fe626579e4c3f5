// Package devices detects a machine's devices: its GPUs with their memory, and its NPUs. It uses llama-server, whose
// output has one format for all kinds of GPU, else nvidia-smi, else the system's files. It changes nothing, and a
// program that hangs or prints garbage costs no more than its time limit.
package devices
