BEGIN TRANSACTION;
CREATE TABLE waybill_count (
	queue VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	jobs BIGINT NOT NULL, 
	changed BIGINT NOT NULL, 
	PRIMARY KEY (queue, state)
);
INSERT INTO "waybill_count" VALUES('mail','available',3,20);
INSERT INTO "waybill_count" VALUES('mail','pending',0,9);
INSERT INTO "waybill_count" VALUES('mail','active',2,20);
INSERT INTO "waybill_count" VALUES('mail','retryable',1,15);
INSERT INTO "waybill_count" VALUES('mail','discarded',1,16);
INSERT INTO "waybill_count" VALUES('mail','completed',1,17);
INSERT INTO "waybill_count" VALUES('mail','cancelled',1,18);
CREATE TABLE waybill_failure (
	fingerprint VARCHAR NOT NULL, 
	count BIGINT NOT NULL, 
	type VARCHAR NOT NULL, 
	queue VARCHAR NOT NULL, 
	error_type VARCHAR NOT NULL, 
	message VARCHAR NOT NULL, 
	first_at VARCHAR NOT NULL, 
	last_at VARCHAR NOT NULL, 
	last_job VARCHAR NOT NULL, 
	PRIMARY KEY (fingerprint)
);
INSERT INTO "waybill_failure" VALUES('f9d0f3fd0da6388f',1,'type.4','mail','ValueError','no \ "way" {1}, ö','2026-01-01T00:00:07.000Z','2026-01-01T00:00:07.000Z','019b7680-0004-7000-8000-000000000004');
CREATE TABLE waybill_failure_hour (
	fingerprint VARCHAR NOT NULL, 
	hour BIGINT NOT NULL, 
	count BIGINT NOT NULL, 
	PRIMARY KEY (fingerprint, hour)
);
INSERT INTO "waybill_failure_hour" VALUES('f9d0f3fd0da6388f',490896,1);
CREATE TABLE waybill_job (
	id VARCHAR NOT NULL, 
	type VARCHAR NOT NULL, 
	queue VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	attempt INTEGER NOT NULL, 
	rank BIGINT NOT NULL, 
	enqueued_at VARCHAR, 
	scheduled_at VARCHAR, 
	started_at VARCHAR, 
	ended_at VARCHAR, 
	next_retry_at VARCHAR, 
	visible_until VARCHAR, 
	worker_id VARCHAR, 
	error VARCHAR, 
	result VARCHAR, 
	progress_message VARCHAR, 
	checkpoint VARCHAR, 
	unique_key VARCHAR, 
	created_at VARCHAR, 
	owner VARCHAR, 
	message VARCHAR, 
	result_expires_at VARCHAR, 
	envelope VARCHAR, 
	errors VARCHAR, 
	progress_data VARCHAR, 
	progress_at VARCHAR, 
	progress FLOAT, 
	visibility_ms INTEGER, 
	fingerprint VARCHAR, 
	PRIMARY KEY (id)
);
INSERT INTO "waybill_job" VALUES('019b7680-0001-7000-8000-000000000001','type.1','mail','available',0,0,'2026-01-01T00:00:02.000Z','2027-01-01T00:00:00Z',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0002-7000-8000-000000000002','type.2','mail','active',1,4,'2026-01-01T00:00:01.000Z',NULL,'2026-01-01T00:00:03.000Z',NULL,NULL,'2026-01-01T00:01:00Z','w',NULL,NULL,NULL,'{"state":[1],"sequence":1}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'2026-01-01T00:00:04.000Z',0.5,9000,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0003-7000-8000-000000000003','type.3','mail','retryable',1,5,'2026-01-01T00:00:01.000Z',NULL,'2026-01-01T00:00:03.000Z',NULL,'2026-01-01T00:00:09Z',NULL,'w','{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö"}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'[{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö","attempt":1,"occurred_at":"2026-01-01T00:00:06.000Z"}]',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0004-7000-8000-000000000004','type.4','mail','discarded',1,1099511627776,'2026-01-01T00:00:01.000Z',NULL,'2026-01-01T00:00:03.000Z','2026-01-01T00:00:07.000Z',NULL,NULL,'w','{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö","dead_letter":true}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'f9d0f3fd0da6388f');
INSERT INTO "waybill_job" VALUES('019b7680-0005-7000-8000-000000000005','type.5','mail','completed',1,1099511627776,'2026-01-01T00:00:01.000Z',NULL,'2026-01-01T00:00:03.000Z','2026-01-01T00:00:08.000Z',NULL,NULL,'w',NULL,'{"answer":42}',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0006-7000-8000-000000000006','type.6','mail','cancelled',1,1099511627776,'2026-01-01T00:00:01.000Z',NULL,'2026-01-01T00:00:03.000Z','2026-01-01T00:00:09.000Z',NULL,NULL,'w',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0007-7000-8000-000000000007','type.7','mail','available',0,0,'2026-01-01T00:00:01.000Z',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('019b7680-0000-7000-8000-000000000000','type.0','mail','available',0,0,'2026-01-01T00:00:01.000Z',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,'k\1','2026-01-01T00:00:00.000Z',NULL,NULL,NULL,'{"id":"019b7680-0000-7000-8000-000000000000","type":"type.0","queue":"mail","args":[{"to":"a \"b\" \\ {c}, ö"}],"meta":{}}',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "waybill_job" VALUES('zz-of-another-program','type.m','mail','active',1,4,'2026-01-01T00:00:10.000Z',NULL,'2026-01-01T00:00:11.000Z',NULL,NULL,NULL,'w',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE waybill_position (
	stream VARCHAR NOT NULL, 
	next_offset BIGINT NOT NULL, 
	version INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	mark_offset BIGINT, 
	mark_digest BIGINT, 
	count_number BIGINT NOT NULL, 
	PRIMARY KEY (stream)
);
INSERT INTO "waybill_position" VALUES('events',24,15,1,3,42,20);
CREATE TABLE waybill_row (
	"key" VARCHAR NOT NULL, 
	mark VARCHAR, 
	value VARCHAR NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE INDEX waybill_job_type ON waybill_job (type, id);
CREATE INDEX waybill_job_failure ON waybill_job (fingerprint, id) WHERE fingerprint IS NOT NULL;
CREATE INDEX waybill_job_held ON waybill_job (visibility_ms) WHERE visibility_ms IS NOT NULL;
CREATE INDEX waybill_job_queue ON waybill_job (queue, enqueued_at);
CREATE INDEX waybill_job_state ON waybill_job (queue, state, id);
CREATE INDEX waybill_job_unique_key ON waybill_job (unique_key);
CREATE INDEX waybill_job_open ON waybill_job (state, id) WHERE state != 'completed';
CREATE INDEX waybill_count_changed ON waybill_count (changed);
CREATE INDEX waybill_failure_last ON waybill_failure (last_at);
CREATE INDEX waybill_row_mark ON waybill_row (mark, "key");
COMMIT;
