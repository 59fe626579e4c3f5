// Package batches serves OpenAI's /v1/files and /v1/batches, and Anthropic's /v1/messages/batches, from a folder, which
// is all the state that they have. Several gateways can share the folder.
//
// The folder has a subfolder for each API key, by the key's tenant name, so that no request reaches another key's files:
//
//	file-ID        bytes of a file
//	file-ID.json   the file as clients see it; without it, there is no such file for clients
//	batch_ID.json  a batch
//	batch_ID.stop  a client has cancelled the batch
//	upload-*       a file that is being uploaded
//	.*             a record that is being written
//
// Files of JSON are replaced by renaming. IDs begin with the time, so that their order is that of creation.
//
// # How a batch flows
//
//  1. [Service.BatchCreate] writes the record. Each gateway looks for unfinished batches ([Service.Run]), and one of
//     them gets the locks of the batch's two outcome files (infra/filelock). The locks end with the process. An NFS
//     client that loses a lock can no longer write to the file, so no two gateways ever append to one.
//  2. validate reads the input once, counts the lines of each model, and fails the batch if a line is malformed.
//  3. The lines run in the order of models, and then that of the file, so that each model is loaded once. A window of
//     lines runs at a time; their outcomes are appended in order, successes to the output file and others to the error
//     file. So the number of lines in both files is the position at which another gateway resumes, once it has cut off
//     a line that a kill left incomplete. Each line has exactly one outcome, although it may have run twice. While the
//     folder is full, outcomes wait in memory and no further lines start.
//  4. A line runs through the gateway's own handler with the batch's API key (Config.Do), in the background: it neither
//     wakes a host nor makes room. In Config.Hours, and when what is left of the completion window may not suffice,
//     lines run with low priority instead, as any request that waits for its model. Refusals that pass are repeated.
//  5. At the end, the outcome files become files of the key, and the record says so. After the window, the other lines
//     get the error batch_expired. Batches and their files are removed when they expire, by default after 30 days.
package batches
