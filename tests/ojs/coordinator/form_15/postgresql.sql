CREATE TABLE public.waybill_count (
    queue character varying NOT NULL,
    state character varying NOT NULL,
    jobs bigint NOT NULL,
    changed bigint NOT NULL
);
CREATE TABLE public.waybill_failure (
    fingerprint character varying NOT NULL,
    count bigint NOT NULL,
    type character varying NOT NULL,
    queue character varying NOT NULL,
    error_type character varying NOT NULL,
    message character varying NOT NULL,
    first_at character varying NOT NULL,
    last_at character varying NOT NULL,
    last_job character varying NOT NULL
);
CREATE TABLE public.waybill_failure_hour (
    fingerprint character varying NOT NULL,
    hour bigint NOT NULL,
    count bigint NOT NULL
);
CREATE TABLE public.waybill_job (
    id character varying NOT NULL,
    type character varying NOT NULL,
    queue character varying NOT NULL,
    state character varying NOT NULL,
    attempt integer NOT NULL,
    rank bigint NOT NULL,
    enqueued_at character varying,
    scheduled_at character varying,
    started_at character varying,
    ended_at character varying,
    next_retry_at character varying,
    visible_until character varying,
    worker_id character varying,
    error character varying,
    result character varying,
    progress_message character varying,
    checkpoint character varying,
    unique_key character varying,
    created_at character varying,
    owner character varying,
    message character varying,
    result_expires_at character varying,
    envelope character varying,
    errors character varying,
    progress_data character varying,
    progress_at character varying,
    progress double precision,
    visibility_ms integer,
    fingerprint character varying
);
CREATE TABLE public.waybill_position (
    stream character varying NOT NULL,
    next_offset bigint NOT NULL,
    version integer NOT NULL,
    epoch integer NOT NULL,
    mark_offset bigint,
    mark_digest bigint,
    count_number bigint NOT NULL
);
CREATE TABLE public.waybill_row (
    key character varying NOT NULL COLLATE pg_catalog."C",
    mark character varying,
    value character varying NOT NULL
);
INSERT INTO public.waybill_count VALUES ('mail', 'pending', 0, 9);
INSERT INTO public.waybill_count VALUES ('mail', 'retryable', 1, 15);
INSERT INTO public.waybill_count VALUES ('mail', 'discarded', 1, 16);
INSERT INTO public.waybill_count VALUES ('mail', 'completed', 1, 17);
INSERT INTO public.waybill_count VALUES ('mail', 'cancelled', 1, 18);
INSERT INTO public.waybill_count VALUES ('mail', 'active', 2, 20);
INSERT INTO public.waybill_count VALUES ('mail', 'available', 3, 20);
INSERT INTO public.waybill_failure VALUES ('f9d0f3fd0da6388f', 1, 'type.4', 'mail', 'ValueError', 'no \ "way" {1}, ö', '2026-01-01T00:00:07.000Z', '2026-01-01T00:00:07.000Z', '019b7680-0004-7000-8000-000000000004');
INSERT INTO public.waybill_failure_hour VALUES ('f9d0f3fd0da6388f', 490896, 1);
INSERT INTO public.waybill_job VALUES ('019b7680-0007-7000-8000-000000000007', 'type.7', 'mail', 'available', 0, 0, '2026-01-01T00:00:01.000Z', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0000-7000-8000-000000000000', 'type.0', 'mail', 'available', 0, 0, '2026-01-01T00:00:01.000Z', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'k\1', '2026-01-01T00:00:00.000Z', NULL, NULL, NULL, '{"id":"019b7680-0000-7000-8000-000000000000","type":"type.0","queue":"mail","args":[{"to":"a \"b\" \\ {c}, ö"}],"meta":{}}', NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0001-7000-8000-000000000001', 'type.1', 'mail', 'available', 0, 0, '2026-01-01T00:00:02.000Z', '2027-01-01T00:00:00Z', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0002-7000-8000-000000000002', 'type.2', 'mail', 'active', 1, 4, '2026-01-01T00:00:01.000Z', NULL, '2026-01-01T00:00:03.000Z', NULL, NULL, '2026-01-01T00:01:00Z', 'w', NULL, NULL, NULL, '{"state":[1],"sequence":1}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '2026-01-01T00:00:04.000Z', 0.5, 9000, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0003-7000-8000-000000000003', 'type.3', 'mail', 'retryable', 1, 5, '2026-01-01T00:00:01.000Z', NULL, '2026-01-01T00:00:03.000Z', NULL, '2026-01-01T00:00:09Z', NULL, 'w', '{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö"}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '[{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö","attempt":1,"occurred_at":"2026-01-01T00:00:06.000Z"}]', NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0004-7000-8000-000000000004', 'type.4', 'mail', 'discarded', 1, 1099511627776, '2026-01-01T00:00:01.000Z', NULL, '2026-01-01T00:00:03.000Z', '2026-01-01T00:00:07.000Z', NULL, NULL, 'w', '{"code":"HANDLER_ERROR","type":"ValueError","message":"no \\ \"way\" {1}, ö","dead_letter":true}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'f9d0f3fd0da6388f');
INSERT INTO public.waybill_job VALUES ('019b7680-0005-7000-8000-000000000005', 'type.5', 'mail', 'completed', 1, 1099511627776, '2026-01-01T00:00:01.000Z', NULL, '2026-01-01T00:00:03.000Z', '2026-01-01T00:00:08.000Z', NULL, NULL, 'w', NULL, '{"answer":42}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('019b7680-0006-7000-8000-000000000006', 'type.6', 'mail', 'cancelled', 1, 1099511627776, '2026-01-01T00:00:01.000Z', NULL, '2026-01-01T00:00:03.000Z', '2026-01-01T00:00:09.000Z', NULL, NULL, 'w', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_job VALUES ('zz-of-another-program', 'type.m', 'mail', 'active', 1, 4, '2026-01-01T00:00:10.000Z', NULL, '2026-01-01T00:00:11.000Z', NULL, NULL, NULL, 'w', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.waybill_position VALUES ('events', 24, 15, 1, 3, 42, 20);
ALTER TABLE ONLY public.waybill_count
    ADD CONSTRAINT waybill_count_pkey PRIMARY KEY (queue, state);
ALTER TABLE ONLY public.waybill_failure_hour
    ADD CONSTRAINT waybill_failure_hour_pkey PRIMARY KEY (fingerprint, hour);
ALTER TABLE ONLY public.waybill_failure
    ADD CONSTRAINT waybill_failure_pkey PRIMARY KEY (fingerprint);
ALTER TABLE ONLY public.waybill_job
    ADD CONSTRAINT waybill_job_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.waybill_position
    ADD CONSTRAINT waybill_position_pkey PRIMARY KEY (stream);
ALTER TABLE ONLY public.waybill_row
    ADD CONSTRAINT waybill_row_pkey PRIMARY KEY (key);
CREATE INDEX waybill_count_changed ON public.waybill_count USING btree (changed);
CREATE INDEX waybill_failure_last ON public.waybill_failure USING btree (last_at);
CREATE INDEX waybill_job_failure ON public.waybill_job USING btree (fingerprint, id) WHERE (fingerprint IS NOT NULL);
CREATE INDEX waybill_job_held ON public.waybill_job USING btree (visibility_ms) WHERE (visibility_ms IS NOT NULL);
CREATE INDEX waybill_job_open ON public.waybill_job USING btree (state, id) WHERE ((state)::text <> 'completed'::text);
CREATE INDEX waybill_job_queue ON public.waybill_job USING btree (queue, enqueued_at);
CREATE INDEX waybill_job_state ON public.waybill_job USING btree (queue, state, id);
CREATE INDEX waybill_job_type ON public.waybill_job USING btree (type, id);
CREATE INDEX waybill_job_unique_key ON public.waybill_job USING btree (unique_key);
CREATE INDEX waybill_row_mark ON public.waybill_row USING btree (mark, key);
